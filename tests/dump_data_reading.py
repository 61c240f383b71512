"""Files of DumpData as tests write them, and what is read of them."""

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tests.dump_data_writer import (
    DATA_TYPES,
    Tensor,
    dump_data,
)
from workers.arrays.dtypes import from_name
from workers.dump.formats.dump_data import read_headers
from workers.dump.formats.header import TensorHeader

FLOATS = Tensor(np.arange(6, dtype="<f4").tobytes(), shape=(2, 3))
BYTES = Tensor(b"abcdefgh", DATA_TYPES["uint8"], shape=(8,))
NULL = Tensor(bytes(16), shape=(4,), address=0, dumped=False)


def headers_of(content: bytes) -> tuple[TensorHeader, ...]:
    return read_headers(lambda offset, nbytes: content[offset : offset + nbytes], len(content))


def payload_of(content: bytes, found: TensorHeader) -> bytes:
    return content[found.offset : found.offset + found.nbytes]


def put_together(content: bytes, headers: Sequence[TensorHeader]) -> bytes:
    """Return the file as it comes out of its tensors, in their order."""
    return b"".join(found.lead + payload_of(content, found) + found.tail for found in headers)


def only(tensor: Tensor) -> TensorHeader:
    (found,) = headers_of(dump_data([tensor]))
    return found


@st.composite
def tensors(draw: st.DrawFn, *, padding: int = 40) -> tuple[Tensor, str]:
    """A tensor of any type in plain order, perhaps padded; and the name of its type."""
    name = draw(st.sampled_from(sorted(DATA_TYPES)))
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    nbytes = from_name(name).nbytes(math.prod(shape))
    length = nbytes + draw(st.integers(0, padding)) if nbytes else 0
    payload = draw(st.binary(min_size=length, max_size=length))
    return Tensor(
        payload,
        DATA_TYPES[name],
        shape,
        original_shape=draw(st.sampled_from([None, shape])),
        address=draw(st.sampled_from([None, 1, 2**63])),
    ), name


PARTS = st.lists(st.binary(max_size=20), max_size=2)
