"""Element types: from the name in a dump to the bytes in the store.

A payload is stored exactly as the dump held it, so an element type is little more than a name, an item
size and a byte order. What Zarr cannot name is stored as `uint8`, with the name kept in the index.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

AnyDType: TypeAlias = np.dtype[Any]

#: Zarr v3 core data types (zarr-specs, "Core data types"), by their numpy name.
_CORE = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
#: Types beyond numpy's own, under the names that TensorStore and zarrs use.
_EXTENDED: dict[str, AnyDType] = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True, slots=True)
class ElementType:
    """How the elements of one tensor are laid out in bytes.

    `name` is the Zarr name (`float32`, `bfloat16`) or, where Zarr has none, the numpy descr (`<U5`).
    """

    name: str
    itemsize: int
    big_endian: bool = False

    @property
    def stored_name(self) -> str:
        """The Zarr data type of the array that holds these elements."""
        return self.name if self.is_native else "uint8"

    @property
    def is_native(self) -> bool:
        """Whether Zarr has a data type for these elements."""
        return self.name in _CORE or self.name in _EXTENDED

    @property
    def array(self) -> str:
        """The name of the packed array that takes these elements."""
        if not self.is_native:
            return "bytes"
        return f"{self.name}_big_endian" if self.big_endian else self.name

    @property
    def stored_itemsize(self) -> int:
        """Bytes per element of the packed array."""
        return self.itemsize if self.is_native else 1

    def to_numpy(self) -> AnyDType:
        """Return the numpy dtype with which the payload bytes can be viewed."""
        dtype = _EXTENDED.get(self.name) or _numpy_dtype(self.name)
        return dtype.newbyteorder(">") if self.big_endian else dtype


@lru_cache(maxsize=256)
def from_name(name: str, *, big_endian: bool = False) -> ElementType:
    """Return the element type with this `ElementType.name`.

    Raises:
        ValueError: the name is not known.
    """
    return ElementType(name, (_EXTENDED.get(name) or _numpy_dtype(name)).itemsize, big_endian)


@lru_cache(maxsize=256)
def from_npy_descr(descr: str) -> ElementType:
    """Return the element type that the `descr` of an npy header names.

    Args:
        descr: the text of the descr: a type string, or the list of fields of a structured type.
            `<E2` is what MindSpore's CPU back end writes for bfloat16; numpy does not know it.

    Raises:
        ValueError: the descr names no fixed-size type, or one that holds Python objects.
    """
    if descr in ("<E2", "|E2", "=E2"):
        return ElementType("bfloat16", 2)
    descr.encode()  # half a surrogate pair, which no text column can hold, is a ValueError too
    dtype = _numpy_dtype(descr)
    if dtype.hasobject:
        message = f"element type {descr:.80} holds pickled Python objects, which are never loaded"
        raise ValueError(message)
    if dtype.shape:
        message = f"element type {descr:.80} is an array of its own"
        raise ValueError(message)
    if dtype.itemsize == 0:
        message = f"element type {descr:.80} has no size"
        raise ValueError(message)
    big_endian = dtype.byteorder == ">"
    # Of big-endian complex elements zarrs 0.2 exchanges the parts: rather bytes than wrong numbers.
    if dtype.name in _CORE and not (big_endian and dtype.kind == "c"):
        return ElementType(dtype.name, dtype.itemsize, big_endian=big_endian)
    return ElementType(descr, dtype.itemsize)


def _numpy_dtype(name: str) -> AnyDType:
    try:
        return np.dtype(ast.literal_eval(name) if name.startswith("[") else name)
    except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as exc:
        message = f"unknown element type {name:.80}"
        raise ValueError(message) from exc
