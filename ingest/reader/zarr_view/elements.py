"""One tensor as a Zarr array: its elements in types that Zarr has, its metadata, and its chunks.

Format: zarr-specs, "Zarr core specification" version 3.1; codecs `transpose` (for tensors in Fortran order)
and `bytes`. Chunks are not compressed: each is read from the stored tensor when it is requested.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.reader.array_like import ArrayLike
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from workers.arrays import dtypes
from workers.arrays.digest import digest
from workers.arrays.dtypes import ElementType
from workers.errors import DamagedStore
from workers.model import MIB, ceil_div
from workers.store import metadata

#: The approximate size of a chunk, in bytes.
CHUNK_NBYTES = MIB
_CHUNK_KEY = re.compile(r"c(?:/(?:0|[1-9][0-9]{0,18}))*")


@dataclass(slots=True, eq=False)
class ViewElements(ArrayLike):
    """A tensor as an array of a type that Zarr has: `dtype`, `shape`.

    Types that Zarr does not have are shown as follows:

    - packed integers (int4, uint4, int2, uint2, uint1) as int8 or uint8, and float4_e2m1fn as float16, with
      the same values;
    - complex32 as float16 with another axis of length 2 at the end: real and imaginary part;
    - strings, structures and other types of numpy as uint8 with another axis at the end: their bytes;
    - opaque types as uint8, with a byte for each element.

    All other types are shown bit for bit, in the byte order of the dump.

    Raises:
        DamagedStore: the index contradicts itself.
    """

    step: Step
    row: int
    element: ElementType = field(init=False)
    dtype: np.dtype[Any] = field(init=False)
    shape: tuple[int, ...] = field(init=False)
    axes: tuple[int, ...] = field(init=False)
    """The axes of `shape` in the order of the store, the slowest first."""
    is_plain: bool = field(init=False)
    """Whether parts of it can be read; false if it is stored in the layout of an accelerator."""

    def __post_init__(self) -> None:
        step, row = self.step, self.row
        try:
            self.element = step.element(row)
        except ValueError as exc:
            raise DamagedStore(f"{step.key}: row {row}: {exc}") from exc
        shape = step.shape(row)
        if any(length < 0 for length in shape):
            raise DamagedStore(f"{step.key}: row {row} has an impossible shape {shape}")
        self.dtype, parts = _shown(self.element)
        self.is_plain = not step.is_in_device_layout(row)
        axes = tuple(range(len(shape)))
        is_fortran = self.is_plain and step.tables.number("fortran_order")[row]
        more = (parts,) if parts else ()
        self.shape = (*shape, *more)
        self.axes = (*(axes[::-1] if is_fortran else axes), *([len(shape)] if parts else []))
        if self.is_plain and step.tables.number("nbytes")[row] < self.element.nbytes(math.prod(shape)):
            raise DamagedStore(f"{step.key}: row {row} has fewer bytes than its shape takes")

    def __reduce__(self) -> tuple[Any, ...]:
        # Of the index of the step, only its own row is sent along.
        return ViewElements, (self.step.only(self.row), 0)

    @property
    def stored_axes(self) -> tuple[int, ...] | None:
        """The axes in the order of the store; None if it is not plain."""
        return self.axes if self.is_plain else None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The lengths of the axes in the order of the store."""
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the axes, as in `d0_16`: axes of the same name have the same length in all tensors."""
        return tuple(f"d{axis}_{length}" for axis, length in enumerate(self.shape))

    def stored(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return elements `start` to `stop` in the order of the store, 1-D of `dtype`.

        Reads the inner chunks of the store that hold them, or the whole tensor if it is not plain. Checks the
        digest only if all elements are read.

        Raises:
            DamagedStore: chunks are missing or damaged, or the digest differs.
        """
        step, row, element = self.step, self.row, self.element
        if not self.is_plain:
            return Tensor(step, row).read().reshape(-1).view(self.dtype)[start:stop]
        bits = element.bits if element.is_packed else 8 * self.dtype.itemsize
        first, last = start * bits // 8, ceil_div(stop * bits, 8)
        payload = step.read(row, first, last)
        is_whole = first == 0 and last == step.tables.number("nbytes")[row]
        if is_whole and digest(payload) != step.tables.digest[row].tobytes():
            raise DamagedStore(f"{step.key}: row {row}: the digest does not match")
        if not element.is_packed:
            return np.frombuffer(payload, self.dtype)
        skipped = start - first * 8 // bits
        return dtypes.unpack(payload, element, skipped + stop - start)[skipped:].astype(self.dtype)

    def read(self, *, verify: bool = True) -> npt.NDArray[Any]:  # noqa: ARG002  (the whole is always verified)
        """Return all elements, in the order of the axes."""
        whole = self.stored(0, math.prod(self.shape)).reshape(self.stored_shape)
        return whole.transpose(np.argsort(self.axes))


def chunk_shape(elements: ViewElements, nbytes: int) -> tuple[int, ...]:
    """Return the lengths of a chunk of about `nbytes`, axes in the order of the store.

    Tensors are cut along their slowest axis, so that every chunk is contiguous in the store. A tensor that is
    not plain is one chunk.
    """
    shape = elements.stored_shape
    chunk = [max(length, 1) for length in shape]
    for axis, length in enumerate(shape if elements.is_plain else ()):
        row = math.prod(chunk[axis + 1 :]) * elements.dtype.itemsize
        if row <= nbytes:
            count = ceil_div(length, max(nbytes // row, 1))
            chunk[axis] = max(ceil_div(length, max(count, 1)), 1)
            break
        chunk[axis] = 1
    return tuple(chunk)


def _shown(element: ElementType) -> tuple[np.dtype[Any], int]:
    """Return the type by which elements are shown, and the length of the additional axis; 0 for none."""
    if element.is_packed:
        types = {"float": np.float16, "uint": np.uint8, "int": np.int8}
        return np.dtype(types[re.sub(r"\d.*", "", element.name)]), 0
    dtype = element.to_numpy()
    if element.name == "complex32":
        return np.dtype("<f2"), 2
    # Opaque types, and a byte order that other readers do not know, are native but for their name.
    is_native = dtype.kind in "biufc" and dtypes.from_name(dtype.name).is_native
    return (dtype, 0) if element.is_native or is_native else (np.dtype(np.uint8), dtype.itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class ViewArray:
    """The array of one tensor."""

    elements: ViewElements
    chunk: tuple[int, ...]
    """The lengths of a chunk, with the axes in the order of the store."""

    @classmethod
    def of(cls, elements: ViewElements) -> ViewArray:
        """Return the array of a tensor, with chunks of about `CHUNK_NBYTES`."""
        return cls(elements, chunk_shape(elements, CHUNK_NBYTES))

    def document(self, attributes: Mapping[str, Any]) -> metadata.Document:
        """Return the Zarr metadata of the array, with these attributes."""
        elements, axes = self.elements, self.elements.axes
        dtype = elements.dtype
        codecs: list[metadata.Document] = [{"name": "bytes"}]
        if dtype.itemsize > 1:
            codecs[0]["configuration"] = {"endian": "big" if dtype.byteorder == ">" else "little"}
        if axes != tuple(range(len(axes))):
            codecs.insert(0, {"name": "transpose", "configuration": {"order": list(axes)}})
        data_type = dtype.newbyteorder("=").name
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(elements.shape),
            "data_type": data_type,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [self.chunk[axes.index(axis)] for axis in sorted(axes)]},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": metadata.fill_value(data_type),
            "codecs": codecs,
            "dimension_names": list(elements.dimensions),
            "attributes": dict(attributes),
            "storage_transformers": [],
        }

    @property
    def chunk_nbytes(self) -> int:
        """The size of a chunk in bytes. Chunks at the ends of the axes are padded with zeros."""
        return math.prod(self.chunk) * self.elements.dtype.itemsize

    @property
    def _counts(self) -> list[int]:
        """The number of chunks along each axis, axes in the order of the store."""
        return list(map(ceil_div, self.elements.stored_shape, self.chunk))

    def chunk_keys(self) -> Iterator[str]:
        """Yield the keys of all chunks, relative to the array."""
        axes = self.elements.axes
        for index in product(*map(range, self._counts)):
            yield "/".join(["c", *(str(index[axes.index(axis)]) for axis in sorted(axes))])

    def chunk_index(self, key: str) -> tuple[int, ...] | None:
        """Return the index of the chunk with this key, axes in the order of the store; None for no chunk."""
        numbers = list(map(int, key.split("/")[1:])) if _CHUNK_KEY.fullmatch(key) else None
        if numbers is None or len(numbers) != len(self.chunk):
            return None
        index = tuple(numbers[axis] for axis in self.elements.axes)
        return index if all(map(int.__lt__, index, self._counts)) else None

    def extent(self, index: tuple[int, ...]) -> tuple[int, int]:
        """Return the first element of a chunk in the order of the store, and the number of its elements.

        The elements are contiguous: at most one axis is cut into chunks longer than 1 and shorter than it.
        """
        first, count = 0, 1
        for i, length, n in zip(index, self.elements.stored_shape, self.chunk, strict=True):
            first = first * length + i * n
            count *= min(n, length - i * n)
        return first, count

    def read(self, index: tuple[int, ...], start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` of one chunk. Reads only the parts of the store that hold them.

        Raises:
            DamagedStore: these parts are missing or damaged.
        """
        itemsize = self.elements.dtype.itemsize
        first, count = self.extent(index)
        begin, end = start // itemsize, min(ceil_div(stop, itemsize), count)
        elements = self.elements.stored(first + begin, first + end).tobytes() if begin < end else b""
        return elements[start - begin * itemsize :][: stop - start].ljust(stop - start, b"\0")
