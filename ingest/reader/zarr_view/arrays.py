"""One tensor as a Zarr array: its metadata, and its chunks.

Format: zarr-specs, "Zarr core specification" version 3.1; codecs `transpose` (for tensors in Fortran order)
and `bytes`. Chunks are not compressed: each is read from the stored tensor when it is requested.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from ingest.reader.zarr_view.elements import ViewElements, chunk_shape
from workers.model import MIB, ceil_div
from workers.store import metadata

#: The approximate size of a chunk, in bytes.
CHUNK_NBYTES = MIB
_CHUNK_KEY = re.compile(r"c(?:/(?:0|[1-9][0-9]{0,18}))*")


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
        by_axis = dict(zip(axes, self.chunk, strict=True))
        chunk = [by_axis[axis] for axis in range(len(axes))]
        codecs: list[metadata.Document] = [{"name": "bytes"}]
        if elements.dtype.itemsize > 1:
            endian = "big" if elements.dtype.byteorder == ">" else "little"
            codecs = [{"name": "bytes", "configuration": {"endian": endian}}]
        if axes != tuple(range(len(axes))):
            codecs.insert(0, {"name": "transpose", "configuration": {"order": list(axes)}})
        data_type = elements.dtype.newbyteorder("=").name
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(elements.shape),
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
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

    def chunk_keys(self) -> Iterator[str]:
        """Yield the keys of all chunks, relative to the array."""
        axes = self.elements.axes
        for index in product(*(range(count) for count in self._counts)):
            by_axis = dict(zip(axes, index, strict=True))
            yield "/".join(["c", *(str(by_axis[axis]) for axis in range(len(axes)))])

    def chunk_index(self, key: str) -> tuple[int, ...] | None:
        """Return the index of the chunk with this key, axes in the order of the store; None for no chunk."""
        if not _CHUNK_KEY.fullmatch(key):
            return None
        numbers = [int(number) for number in key.split("/")[1:]]
        if len(numbers) != len(self.chunk):
            return None
        index = tuple(numbers[axis] for axis in self.elements.axes)
        return index if all(i < n for i, n in zip(index, self._counts, strict=True)) else None

    def read(self, index: tuple[int, ...], start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` of one chunk. Reads only the parts of the store that hold them.

        Raises:
            DamagedStore: these parts are missing or damaged.
        """
        itemsize = self.elements.dtype.itemsize
        first, count = self._elements_of(index)
        begin, end = start // itemsize, min(ceil_div(stop, itemsize), count)
        elements = self.elements.flat(first + begin, first + end).tobytes() if begin < end else b""
        return elements[start - begin * itemsize :][: stop - start].ljust(stop - start, b"\0")

    @property
    def _counts(self) -> tuple[int, ...]:
        """The number of chunks along each axis, axes in the order of the store."""
        lengths = self.elements.stored_shape
        return tuple(ceil_div(length, n) for length, n in zip(lengths, self.chunk, strict=True))

    def _elements_of(self, index: tuple[int, ...]) -> tuple[int, int]:
        """Return the first element of a chunk in the order of the store, and the number of its elements.

        The elements are contiguous: at most one axis is cut into chunks longer than 1 and shorter than it.
        """
        shape = self.elements.stored_shape
        first, count = 0, 1
        for i, length, n in zip(index, shape, self.chunk, strict=True):
            first = first * length + i * n
            count *= min(n, length - i * n)
        return first, count
