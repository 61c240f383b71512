"""Makes the header of a safetensors file. `safetensors.py` reads such files, and has the format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from workers.dump.formats.safetensors import DTYPES, METADATA

#: The codes of the format, by our names of the types.
CODES: Final = {name: code for code, name in DTYPES.items()}
#: Elements begin at a multiple of this many bytes, so that all are aligned if the largest come first.
_ALIGNMENT: Final = 8


class TensorInFile(NamedTuple):
    """A tensor as the header describes it."""

    name: str
    dtype: str
    """One of `CODES`."""
    shape: tuple[int, ...]
    nbytes: int


def encode_header(tensors: Iterable[TensorInFile], metadata: Mapping[str, str] | None = None) -> bytes:
    """Encode the header of these tensors, which follow one another in this order."""
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.nbytes
        header[tensor.name] = {
            "dtype": CODES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": (begin, end),
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
