"""One tensor as a Zarr array: its metadata, and its chunks.

Format: zarr-specs, "Zarr core specification" version 3.1; codecs `transpose` (for tensors in Fortran order)
and `bytes`. Chunks are not compressed: they are cut from what the store holds when they are asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from ingest.reader.zarr_view.elements import Elements, chunk_shape
from workers.model import MIB
from workers.store import metadata

#: Bytes of a chunk, about.
CHUNK_NBYTES = MIB
_CHUNK_KEY = re.compile(r"c(?:/(?:0|[1-9][0-9]{0,18}))*")


@dataclass(frozen=True, slots=True, eq=False)
class ViewArray:
    """The array of one tensor."""

    elements: Elements
    chunk: tuple[int, ...]
    """Lengths of a chunk, axes in the order of the store."""

    @classmethod
    def of(cls, elements: Elements) -> ViewArray:
        """Cut a tensor into chunks."""
        return cls(elements, chunk_shape(elements, CHUNK_NBYTES))

    def document(self, attributes: Mapping[str, Any]) -> metadata.Document:
        """Return the metadata of the array."""
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
        """Bytes of a chunk; those at the far ends of the axes are filled up with zeros."""
        return math.prod(self.chunk) * self.elements.dtype.itemsize

    def chunk_keys(self) -> Iterator[str]:
        """Yield the keys of all chunks, relative to the array."""
        axes = self.elements.axes
        for place in product(*(range(count) for count in self._counts)):
            by_axis = dict(zip(axes, place, strict=True))
            yield "/".join(["c", *(str(by_axis[axis]) for axis in range(len(axes)))])

    def place(self, key: str) -> tuple[int, ...] | None:
        """Return which chunk a key is, axes in the order of the store; None where there is no such chunk."""
        if not _CHUNK_KEY.fullmatch(key):
            return None
        numbers = [int(number) for number in key.split("/")[1:]]
        if len(numbers) != len(self.chunk):
            return None
        place = tuple(numbers[axis] for axis in self.elements.axes)
        counts = self._counts
        return place if all(i < n for i, n in zip(place, counts, strict=True)) else None

    def read(self, place: tuple[int, ...], start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` of one chunk. Reads no more of the store than holds them.

        Raises:
            DamagedStore: what holds them is missing or damaged.
        """
        itemsize = self.elements.dtype.itemsize
        first, count = self._span(place)
        begin, end = start // itemsize, min(-(-stop // itemsize), count)
        found = b""
        if begin < end:
            found = self.elements.flat(first + begin, first + end).tobytes()
        found = found[start - begin * itemsize :][: stop - start]
        return found.ljust(stop - start, b"\0")

    @property
    def _counts(self) -> tuple[int, ...]:
        lengths = self.elements.stored_shape
        return tuple(-(-length // n) for length, n in zip(lengths, self.chunk, strict=True))

    def _span(self, place: tuple[int, ...]) -> tuple[int, int]:
        """Return the first element of a chunk in the order of the store, and how many it has."""
        shape = self.elements.stored_shape
        first, count = 0, 1
        for at, length, n in zip(place, shape, self.chunk, strict=True):
            first = first * length + at * n
            # Of the axes only one is cut into more than single places, so this is one stretch.
            count *= min(n, length - at * n)
        return first, count
