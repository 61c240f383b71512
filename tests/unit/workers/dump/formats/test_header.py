"""The header of a tensor, as every format returns it."""

import pickle

import numpy as np

from workers.arrays.dtypes import from_name
from workers.dump.formats.header import (
    TensorHeader,
    is_addressable,
)


def test_shapes_of_no_elements_are_those_that_numpy_can_make() -> None:
    for shape in ((0, 2**60), (0, 2**59, 2), (2**60 - 1, 0), (0,), ()):
        try:
            np.empty(shape, np.float64)
        except ValueError:
            assert not is_addressable(shape, 8)
        else:
            assert is_addressable(shape, 8)


def test_header_survives_the_way_to_a_worker() -> None:
    header = TensorHeader(from_name("int4"), (3,), offset=9, nbytes=2, lead=b"lead", tail=b"tail", slot=1)
    assert pickle.loads(pickle.dumps(header)) == header  # noqa: S301 (our own)
