"""The elements of an operand by range, in C order: how pieces of a tensor are read to be put together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from workers.arrays.digest import digest
from workers.arrays.dtypes import ElementType, unpack
from workers.arrays.sharded.assembly import Array, Elements
from workers.arrays.sharded.placement_search import Pieces
from workers.dump.source import OpenFile
from workers.errors import DamagedStore
from workers.model import MIB
from workers.store.packed.shards import ShardReader
from workers.tasks.operands import InFile, Operand, Stored, read_whole, reader_of

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


class WholeElements:
    """Elements that are in memory."""

    def __init__(self, values: Array) -> None:
        """Serve these values, in C order."""
        self._values = values.reshape(-1)

    def read(self, start: int, stop: int) -> Array:
        """Return elements `start` to `stop`, 1-D."""
        return self._values[start:stop]

    @property
    def digest(self) -> bytes:
        """The digest of the elements and of their type."""
        values = np.ascontiguousarray(self._values)
        return digest(values.view(np.uint8).data) + str(values.dtype).encode()


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
        self._chunks = _StoredChunks.of(operand)
        self._phase = self._chunks.phase if self._chunks else 0
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
        if count > 1 and self._chunks:
            # What lies in the next shard takes another request: it begins the next read.
            end = (self._chunks.shard_end(begin) + self._phase) // _WINDOW
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
        """Return the first element of a window."""
        return max(number * _WINDOW - self._phase, 0)


@dataclass(frozen=True, slots=True)
class _StoredChunks:
    """Where the chunks and shards of a store cut an operand, in its elements."""

    first: int
    """Its first element in the array."""
    shard: int
    """Elements of a shard."""

    @classmethod
    def of(cls, operand: Operand) -> _StoredChunks | None:
        """Return the chunks of an operand in a store; None for others, or if elements cross chunks."""
        place = operand.place
        if not isinstance(place, Stored):
            return None
        each = operand.element.itemsize // place.array.itemsize
        if not each or place.first % each or place.array.chunk % each:
            return None
        return cls(place.first // each, place.array.shard // each)

    @property
    def phase(self) -> int:
        """How many elements lie before the operand since the last place where a window could begin."""
        return self.first % _WINDOW

    def shard_end(self, element: int) -> int:
        """Return the first element of the operand that lies in the next shard."""
        return ((self.first + element) // self.shard + 1) * self.shard - self.first


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
            with OpenFile(Path(place.root), place.source, operand.where) as file:
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
    if element.name == "complex32":
        return np.asarray(values.view("<f2").astype(np.float32).view(np.complex64))
    if element.is_opaque or values.dtype.kind in "SU" or values.dtype.names:
        raise ValueError(f"elements of type {element.name} are not numbers")
    # numpy joins arrays in this order, so that the number of pieces would decide whether types are equal.
    return values.astype(values.dtype.newbyteorder("="), copy=False)
