"""Tensors to compare, in a store or in files of a dump, and how their elements are read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays import device_format
from workers.arrays.device_format import DeviceLayout
from workers.arrays.dtypes import ElementType, unpack
from workers.arrays.strided import StridedView
from workers.dump.source import OpenFile
from workers.errors import DamagedStore
from workers.model import SourceFile
from workers.store.model import ArraySpec, StoreAddress
from workers.store.opening import open_objects
from workers.store.packed.shard_stream import ShardStream
from workers.store.packed.shards import ShardReader
from workers.tasks.entry_statistics import elements_in

Payload: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Stored:
    """A payload in a store: a range of elements of one packed array of one generation."""

    store: StoreAddress
    prefix: str
    """Path of the array in the store."""
    array: ArraySpec
    first: int
    size: int
    """How many elements of the array: bytes if it is an array of bytes."""


@dataclass(frozen=True, slots=True)
class InFile:
    """A payload in a file of a dump."""

    root: str
    source: SourceFile
    offset: int
    view: StridedView | None = None
    """How the elements are selected from the bytes behind `offset`; None if they are contiguous."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor: what its bytes mean, and where they are."""

    where: str
    """Rank and step, for errors."""
    element: ElementType
    shape: tuple[int, ...]
    nbytes: int
    """Payload bytes, including padding of a device."""
    place: Stored | InFile | None
    """None if it has no bytes."""
    digest: bytes = b""
    """XXH3-128 of the payload; empty if it has not been computed yet."""
    fortran_order: bool = False
    device: DeviceLayout | None = None
    """The layout of the payload, if it is not in the order of the axes."""

    @property
    def size(self) -> int:
        """Number of elements, without padding."""
        return math.prod(self.shape)

    @property
    def meaning(self) -> tuple[object, ...]:
        """Everything besides its bytes that defines the tensor."""
        return self.element, self.shape, self.fortran_order and len(self.shape) > 1, self.device

    @property
    def is_in_order(self) -> bool:
        """Whether the payload holds the elements in C order of the axes."""
        return self.device is None and not (self.fortran_order and len(self.shape) > 1)

    def values(self, payload: Payload) -> npt.NDArray[Any]:
        """Return the elements of the whole payload in C order of the axes, 1-D; packed ones unpacked.

        Raises:
            ValueError: their layout cannot be converted into host layout, or there are too few of them.
        """
        if self.device is not None:
            flat = np.frombuffer(payload, np.uint8)
            host = device_format.to_host(flat, self.device, self.shape, self.element)
            return host.reshape(-1).view(self.element.values)
        elements = unpack(payload, self.element, self.size)
        if elements.size != self.size:
            message = f"{elements.size} elements instead of {self.size}"
            raise ValueError(message)
        return elements if self.is_in_order else elements.reshape(self.shape, order="F").reshape(-1)


def read_whole(operands: Sequence[Operand]) -> list[Payload | DamagedStore]:
    """Return the payload of each operand, or the error of a damaged one.

    Memory: twice all payloads, and what a `ShardStream` keeps. Chunks that several operands share are fetched
    once.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    payloads: list[Payload | DamagedStore] = [b""] * len(operands)
    stored: list[tuple[Stored, int]] = []
    for number, operand in enumerate(operands):
        match operand.place:
            case Stored() as place if place.size:
                stored.append((place, number))
            case InFile() as place if operand.nbytes:
                payloads[number] = b"".join(_pieces_of_file(place, operand))
    stored.sort(key=lambda member: (str(member[0].store), member[0].prefix, member[0].first))
    for _, group in groupby(stored, key=lambda member: (member[0].store, member[0].prefix)):
        members = list(group)
        reader = reader_of(members[0][0])
        with ShardStream(reader, [(place.first, place.first + place.size) for place, _ in members]) as stream:
            for place, number in members:
                try:
                    payloads[number] = stream.payload(place.first, place.first + place.size)
                except DamagedStore as exc:
                    payloads[number] = exc
    return payloads


def read_pieces(operand: Operand, elements: int) -> Iterator[Payload]:
    """Yield the payload of one operand in pieces of this many elements; the last one may be shorter.

    Args:
        operand: what to read.
        elements: a multiple of 8, because elements may be packed into bytes.

    Raises:
        DamagedStore: a chunk is missing or damaged.
        DumpError: a file of a dump changed, or cannot be read.
    """
    piece_nbytes = operand.element.nbytes(elements)
    match operand.place:
        case Stored() as place:
            stop = place.first + place.size
            reader = reader_of(place)
            with ShardStream(reader, [(place.first, stop)]) as stream:
                yield from stream.pieces(place.first, stop, piece_nbytes // reader.spec.itemsize)
        case InFile() as place:
            yield from _pieces_of_file(place, operand, piece_nbytes)


def _pieces_of_file(place: InFile, operand: Operand, piece: int = 0) -> Iterator[Payload]:
    nbytes, step = operand.nbytes, piece or operand.nbytes
    with OpenFile(Path(place.root), place.source, operand.where) as file:
        if place.view is not None:
            elements = elements_in(file, place.offset, place.view, operand.shape, operand.element)
            yield from (elements[start : start + step] for start in range(0, nbytes, step))
            return
        for start in range(0, nbytes, step):
            buffer = memoryview(bytearray(min(step, nbytes - start)))
            yield from file.pieces(buffer, place.offset + start, len(buffer))


@lru_cache(maxsize=32)
def _reader_of(store: StoreAddress, prefix: str, array: ArraySpec) -> ShardReader:
    # Cached, because it keeps the indexes of shards; a generation never changes.
    return ShardReader(open_objects(store), prefix, array)


def reader_of(place: Stored) -> ShardReader:
    """Return the reader of the array in which a payload is, with the indexes of shards that it has read."""
    return _reader_of(place.store, place.prefix, place.array)
