"""Tensors to compare, in a store or in files of a dump, and how their elements are read."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays import device_format
from workers.arrays.arrangements import StridedView
from workers.arrays.device_format import DeviceLayout
from workers.arrays.digest import digest
from workers.arrays.dtypes import ElementType, unpack
from workers.arrays.sharded.assembly import Array, Elements, WholeElements
from workers.arrays.sharded.placement_search import Pieces
from workers.arrays.statistics import widened_complex
from workers.dump.source import OpenFile
from workers.errors import DamagedStore
from workers.model import MIB, SourceFile
from workers.store.model import ArraySpec, StoreAddress
from workers.store.opening import open_objects
from workers.store.packed.shards import ShardReader, ShardStream
from workers.tasks.entry_statistics import elements_in

Payload: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Stored:
    """A payload in a store: a range of elements of one packed array of one generation."""

    store: StoreAddress
    prefix: str
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
            raise ValueError(f"{elements.size} elements instead of {self.size}")
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
    in_files: list[tuple[InFile, int]] = []
    for number, operand in enumerate(operands):
        match operand.place:
            case Stored() as place if place.size:
                stored.append((place, number))
            case InFile() as place if operand.nbytes:
                in_files.append((place, number))
    for (root, source), group_in_file in groupby(
        in_files, key=lambda member: (member[0].root, member[0].source)
    ):
        parts = list(group_in_file)
        with OpenFile(root, source, operands[parts[0][1]].where) as file:
            for place, number in parts:
                payloads[number] = next(
                    _pieces_of_file(file, place, operands[number], operands[number].nbytes)
                )
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
            with OpenFile(place.root, place.source, operand.where) as file:
                yield from _pieces_of_file(file, place, operand, piece_nbytes)


def _pieces_of_file(file: OpenFile, place: InFile, operand: Operand, step: int) -> Iterator[Payload]:
    if place.view is not None:
        elements = elements_in(file, place.offset, place.view, operand.shape, operand.element)
        yield from (elements[start : start + step] for start in range(0, operand.nbytes, step))
        return
    for start in range(0, operand.nbytes, step):
        buffer = memoryview(bytearray(min(step, operand.nbytes - start)))
        yield from file.pieces(buffer, place.offset + start, len(buffer))


@lru_cache(maxsize=32)
def _reader_of(store: StoreAddress, prefix: str, array: ArraySpec) -> ShardReader:
    # Cached, because it keeps the indexes of shards; a generation never changes.
    return ShardReader(open_objects(store), prefix, array)


def reader_of(place: Stored) -> ShardReader:
    """Return the reader of the array in which a payload is, with the indexes of shards that it has read."""
    return _reader_of(place.store, place.prefix, place.array)


#: Operands of together at most this many bytes are read as a whole.
WHOLE_NBYTES = 32 * MIB
#: The largest operand that is read as a whole because its elements are not in C order, packed, or a view.
MAX_REORDERED_NBYTES = 256 * MIB
#: Elements of a window of a large operand, and how many windows of it are kept at least.
_WINDOW, _WINDOWS = 256 * 1024, 4
#: The most that is read ahead of operands that are read in order, together; and windows of one.
_AHEAD_NBYTES, _MOST_AHEAD = 96 * MIB, 32
#: Chunks of a range that are fetched with one request, in bytes before compression.
_RUN_NBYTES = 32 * MIB


class RangedElements:
    """Elements of a large operand, of which some windows are kept. Not safe to share between threads.

    Windows that are read one after the other are read ahead, several with one request. The digest of the
    payload is not checked: a range does not have one. Chunks of a store have checksums.
    """

    def __init__(self, operand: Operand, ahead: int = 1, *, in_order: bool = False) -> None:
        """Prepare to read an operand from its dump or store; when in order, `ahead` windows at a time.

        Args:
            operand: what is read.
            ahead: how many windows are read at once, if they are read one after the other.
            in_order: they will be, from the first one on.
        """
        self._operand = operand
        self._ahead = ahead
        self._next = 0 if in_order else -1
        """The window behind the last one that was read."""
        self._windows: OrderedDict[int, Array] = OrderedDict()
        self._first = self._shard = 0
        """Its first element in the array of a store, and elements of a shard; 0 if elements cross chunks."""
        if isinstance(place := operand.place, Stored):
            each = operand.element.itemsize // place.array.itemsize
            if each and not place.first % each and not place.array.chunk % each:
                self._first, self._shard = place.first // each, place.array.shard // each
        self._phase = self._first % _WINDOW
        """How many elements the first window has less than the others, which begin as chunks do."""

    def read(self, start: int, stop: int) -> Array:
        """Return elements `start` to `stop`, 1-D.

        Raises:
            DamagedStore: a chunk is missing or damaged.
            DumpError: a file of a dump changed, or cannot be read.
        """
        blocks = []
        first, last = (start + self._phase) // _WINDOW, -(-(stop + self._phase) // _WINDOW)
        for number in range(first, max(last, first + 1)):
            begin = self._begin(number)
            blocks.append(self._window(number)[max(start - begin, 0) : max(stop - begin, 0)])
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def _window(self, number: int) -> Array:
        if number in self._windows:
            self._windows.move_to_end(number)
            return self._windows[number]
        count = self._ahead if number == self._next else 1
        begin, size = self._begin(number), self._operand.size
        if count > 1 and self._shard:
            # What lies in the next shard takes another request: it begins the next read.
            end_of_shard = ((self._first + begin) // self._shard + 1) * self._shard - self._first
            end = (end_of_shard + self._phase) // _WINDOW
            count = max(min(count, end - number), 1)
        values = _read_range(self._operand, begin, min(self._begin(number + count), size))
        self._next = number + count
        for place in range(number, number + count):
            window = slice(self._begin(place) - begin, self._begin(place + 1) - begin)
            if window.start < max(values.size, 1):
                self._windows[place] = values[window]
        while len(self._windows) > max(_WINDOWS, self._ahead):
            self._windows.popitem(last=False)
        return self._windows[number]

    def _begin(self, number: int) -> int:
        return max(number * _WINDOW - self._phase, 0)


def elements_of(operands: Sequence[Operand], *, in_order: bool = False) -> list[Elements]:
    """Return the elements of operands: together small ones are read now, and large ones by range.

    Args:
        operands: what is read.
        in_order: all elements of large ones will be read, from the first one on.

    Memory: `WHOLE_NBYTES`; or 96 MiB, and some windows of 256 Ki elements for each operand.

    Raises:
        DamagedStore: a chunk is missing or damaged, or a digest differs.
        DumpError: a file of a dump changed, or cannot be read.
        ValueError: elements are in a layout that cannot be read, or that is too large to be brought in order.
    """
    is_small = sum(operand.nbytes for operand in operands) <= WHOLE_NBYTES
    whole = [number for number, operand in enumerate(operands) if is_small or not _has_ranges(operand)]
    for number in whole:
        if operands[number].nbytes > MAX_REORDERED_NBYTES:
            raise ValueError(f"{operands[number].where}: too large to be brought into the order of its axes")
    payloads = dict(zip(whole, read_whole([operands[number] for number in whole]), strict=True))
    elements: list[Elements] = []
    for number, operand in enumerate(operands):
        if number not in payloads:
            share = _AHEAD_NBYTES // len(operands) // (_WINDOW * operand.element.itemsize)
            elements.append(RangedElements(operand, min(max(share, 1), _MOST_AHEAD), in_order=in_order))
            continue
        payload = payloads[number]
        if isinstance(payload, DamagedStore):
            raise payload
        if isinstance(operand.place, Stored) and digest(payload) != operand.digest:
            raise DamagedStore(f"{operand.where}: the digest does not match")
        elements.append(WholeElements(_as_numbers(operand.values(payload), operand.element)))
    return elements


def with_twins(pieces: Pieces, elements: Sequence[Elements]) -> Pieces:
    """Return pieces of which those that were read as a whole and hold the same are known to.

    Digests in a store are known in advance; digests of a dump are known only after it was read.
    """
    first: dict[object, int] = {}
    twins = []
    for number, (twin, read) in enumerate(zip(pieces.twins, elements, strict=True)):
        own: object = number
        if isinstance(read, WholeElements):
            own = pieces.shapes[number], read.digest
        twins.append(min(twin, first.setdefault(own, number)))
    return replace(pieces, twins=tuple(twins))


def _has_ranges(operand: Operand) -> bool:
    if not operand.is_in_order or operand.element.is_packed:
        return False
    return not (isinstance(operand.place, InFile) and operand.place.view is not None)


def _read_range(operand: Operand, start: int, stop: int) -> Array:
    element, itemsize = operand.element, operand.element.itemsize
    payload: bytes | bytearray
    match operand.place:
        case Stored() as place:
            reader: ShardReader = reader_of(place)
            each = itemsize // reader.spec.itemsize
            payload = reader.read(place.first + start * each, place.first + stop * each, _RUN_NBYTES)
        case InFile() as place:
            nbytes = (stop - start) * itemsize
            with OpenFile(place.root, place.source, operand.where) as file:
                buffer = memoryview(bytearray(nbytes))
                offset = place.offset + start * itemsize
                payload = b"".join(bytes(piece) for piece in file.pieces(buffer, offset, nbytes))
        case _:
            payload = b""
    return _as_numbers(unpack(payload, element, stop - start), element)


def _as_numbers(values: Array, element: ElementType) -> Array:
    """Return elements of a type that numpy can add, in the byte order of this machine.

    Raises:
        ValueError: they are not numbers.
    """
    values = widened_complex(values)
    if element.is_opaque or values.dtype.kind in "SU" or values.dtype.names:
        raise ValueError(f"elements of type {element.name} are not numbers")
    # numpy joins arrays in this order, so that the number of pieces would decide whether types are equal.
    return values.astype(values.dtype.newbyteorder("="), copy=False)
