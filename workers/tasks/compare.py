"""Comparisons in a thread or a Dask task: of pairs of tensors; of tensors that several ranks hold in pieces.

A task is given places and returns metrics. `read_content` and `is_turned` tell tensors of unknown content
apart.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from workers.arrays import device_format
from workers.arrays.comparison import Array, Metrics, RunningComparison, is_numeric, no_difference
from workers.arrays.digest import digest, new_digest
from workers.arrays.dtypes import unpack
from workers.arrays.sharded.assembly import Assembly
from workers.arrays.sharded.placement_search import Pieces, Search, search, trimmed
from workers.arrays.statistics import RunningStatistics, has_statistics
from workers.errors import DamagedStore
from workers.model import MIB
from workers.tasks.operands import (
    InFile,
    Operand,
    Payload,
    Stored,
    elements_of,
    read_pieces,
    read_whole,
    with_twins,
)

_Job = TypeVar("_Job")
_Answer = TypeVar("_Answer")
#: Elements of a piece.
_PIECE = 1024 * 1024
#: A pair with more payload bytes than this is compared piece by piece.
WHOLE_NBYTES = 32 * MIB
#: Up to this many payload bytes, a tensor that is not in the order of its axes is brought into it in memory.
MAX_REORDERED_NBYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tensors of one shape; B is the reference."""

    a: Operand
    b: Operand

    @property
    def nbytes(self) -> int:
        """Payload bytes of both."""
        return self.a.nbytes + self.b.nbytes


@dataclass(frozen=True, slots=True)
class PairComparison:
    """The result of one pair."""

    metrics: Metrics | None
    """None if they could not be compared."""
    basis: str = "elements"
    """What was compared: `digest`, `elements`, or `device layout` with its padding."""
    problem: str = ""
    damaged: bool = False


def compare_pairs(pairs: Sequence[Pair]) -> list[PairComparison]:
    """Compare pairs. Each payload byte is read once; of large files whose digest is unknown, twice.

    Memory: the payloads of the small pairs, which the caller bounds. Then, for one large pair after the
    other, pieces of 1 Mi elements of both and what two `ShardStream`s hold (about 400 MiB in all); or, if
    elements are not in the order of the axes, twice both payloads, of up to `MAX_REORDERED_NBYTES` each.

    Raises:
        StoreError: a store cannot be reached. Damage is reported in the result of the pair.
        DumpError: a file of a dump changed, or cannot be read.
    """
    small = [number for number, pair in enumerate(pairs) if pair.nbytes <= WHOLE_NBYTES]
    results = dict(zip(small, _compare_small([pairs[number] for number in small]), strict=True))
    return [results.get(number) or _compare_large(pair) for number, pair in enumerate(pairs)]


def _compare_small(pairs: Sequence[Pair]) -> Iterator[PairComparison]:
    """Compare pairs that fit into memory together. Nothing is read from a store if digests decide."""
    # Files first: their digests may make reading the store unnecessary.
    read: dict[int, Payload | DamagedStore] = {}
    for kind in (InFile, Stored):
        wanted: dict[int, Operand] = {}
        for pair in pairs:
            if not _decided(_digested(pair.a, read), _digested(pair.b, read)):
                wanted.update({id(side): side for side in (pair.a, pair.b) if isinstance(side.place, kind)})
        read.update(zip(wanted, read_whole(list(wanted.values())), strict=True))
    for pair in pairs:
        a, b = _digested(pair.a, read), _digested(pair.b, read)
        if _decided(a, b):
            yield PairComparison(no_difference(a.size), "digest")
        else:
            yield _compare_payloads(a, read.get(id(pair.a), b""), b, read.get(id(pair.b), b""))


def _compare_payloads(
    a: Operand, payload_a: Payload | DamagedStore, b: Operand, payload_b: Payload | DamagedStore
) -> PairComparison:
    for payload in (payload_a, payload_b):
        if isinstance(payload, DamagedStore):
            return _failed(payload)
    assert not isinstance(payload_a, DamagedStore)  # noqa: S101  (for mypy)
    assert not isinstance(payload_b, DamagedStore)  # noqa: S101
    for side, payload in ((a, payload_a), (b, payload_b)):
        if isinstance(side.place, Stored) and digest(payload) != side.digest:
            return PairComparison(None, problem=f"{side.where}: the digest does not match", damaged=True)
    running = RunningComparison()
    try:
        _update(running, a, a.values(payload_a), b, b.values(payload_b))
    except ValueError as exc:
        return _compare_as_laid(a, payload_a, b, payload_b, exc)
    return PairComparison(running.result())


def _compare_as_laid(
    a: Operand, payload_a: Payload, b: Operand, payload_b: Payload, exc: Exception
) -> PairComparison:
    """Compare payloads that cannot be brought into the order of the axes, if both have the same layout."""
    if a.device is None or a.device != b.device:
        return PairComparison(None, problem=str(exc))
    running = RunningComparison()
    values = [
        unpack(p, side.element, math.prod(a.device.shape)) for side, p in ((a, payload_a), (b, payload_b))
    ]
    if values[0].size != values[1].size:
        return PairComparison(None, problem=str(exc))
    _update(running, a, values[0], b, values[1])
    return PairComparison(running.result(), "device layout")


def _compare_large(pair: Pair) -> PairComparison:
    a, b = map(_with_digest, (pair.a, pair.b))
    if _decided(a, b):
        return PairComparison(no_difference(a.size), "digest")
    if not (a.is_in_order and b.is_in_order):
        if all(map(_can_reorder, (a, b))):
            payloads = read_whole([a, b])
            return _compare_payloads(a, payloads[0], b, payloads[1])
        if a.device != b.device or a.is_in_order != b.is_in_order:
            return PairComparison(None, problem="too large to be brought from one layout into the other")
    try:
        return PairComparison(_stream(a, b), "elements" if a.device is None else "device layout")
    except (DamagedStore, ValueError) as exc:
        return _failed(exc)


def _failed(exc: Exception) -> PairComparison:
    """Return what is said of a pair that cannot be compared, or of which something is damaged."""
    if isinstance(exc, DamagedStore):
        return PairComparison(None, problem=exc.message, damaged=True)
    return PairComparison(None, problem=str(exc))


def _stream(a: Operand, b: Operand) -> Metrics:
    running = RunningComparison()
    left = a.size if a.device is None else math.prod(a.device.shape)
    digests = new_digest(), new_digest()
    pieces = read_pieces(a, _PIECE), read_pieces(b, _PIECE)
    for piece_a, piece_b in zip(*pieces, strict=True):
        for digest_of_side, piece in zip(digests, (piece_a, piece_b), strict=True):
            digest_of_side.update(piece)
        values_a, values_b = unpack(piece_a, a.element, left), unpack(piece_b, b.element, left)
        left -= values_a.size
        _update(running, a, values_a, b, values_b)
    for side, digest_of_side in zip((a, b), digests, strict=True):
        if digest_of_side.digest() != side.digest:
            raise DamagedStore(f"{side.where}: the digest does not match")
    return running.result()


def _update(running: RunningComparison, a: Operand, values_a: Array, b: Operand, values_b: Array) -> None:
    if is_numeric(a.element) and is_numeric(b.element):
        running.update(values_a, values_b)
        return
    if a.element != b.element:
        raise ValueError(f"{a.element.name} and {b.element.name} cannot be compared")
    width = a.element.itemsize
    as_bytes = (np.ascontiguousarray(v).view(np.uint8).reshape(-1, width) for v in (values_a, values_b))
    running.update_opaque(*as_bytes)


def _decided(a: Operand, b: Operand) -> bool:
    """Return whether digests show that two tensors are the same. They never show that two are not."""
    return bool(a.digest) and a.digest == b.digest and a.meaning == b.meaning


def _digested(operand: Operand, read: dict[int, Payload | DamagedStore]) -> Operand:
    payload = read.get(id(operand))
    if operand.digest or payload is None or isinstance(payload, DamagedStore):
        return operand
    return replace(operand, digest=digest(payload))


def _with_digest(operand: Operand) -> Operand:
    if operand.digest:
        return operand
    running = new_digest()
    for piece in read_pieces(operand, _PIECE):
        running.update(piece)
    return replace(operand, digest=running.digest())


def _can_reorder(operand: Operand) -> bool:
    if operand.nbytes > MAX_REORDERED_NBYTES:
        return False
    return operand.device is None or device_format.convertible(operand.device, operand.shape, operand.element)


@dataclass(frozen=True, slots=True)
class PlacementQuestion:
    """The pieces of one tensor on two sides, of which it is asked how they make it up."""

    a: tuple[Operand, ...]
    b: tuple[Operand, ...]
    pieces_a: Pieces
    pieces_b: Pieces
    further: bool = True
    """Whether a search goes further than the usual ways, if none of these fits."""

    @property
    def nbytes(self) -> int:
        """Payload bytes of all pieces."""
        return sum(operand.nbytes for operand in (*self.a, *self.b))


@dataclass(frozen=True, slots=True)
class PlacementAnswer:
    """The ways that were tried; none if nothing could be read."""

    search: Search
    problem: str = ""
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class PlacedPair:
    """A tensor of two sides, each put together from pieces. B is the reference."""

    a: tuple[Operand, ...]
    b: tuple[Operand, ...]
    assembly_a: Assembly
    assembly_b: Assembly

    @property
    def nbytes(self) -> int:
        """Payload bytes of all pieces."""
        return sum(operand.nbytes for operand in (*self.a, *self.b))


def search_placement(question: PlacementQuestion) -> PlacementAnswer:
    """Answer a question.

    Memory: what `elements_of` takes, twice 256 Ki elements, and
    what `search` keeps of small tensors.

    Raises:
        StoreError: a store cannot be reached. Damage is reported in the answer.
        DumpError: a file of a dump changed, or cannot be read.
    """
    try:
        elements = elements_of([*question.a, *question.b])
        count = len(question.a)
        answer = search(
            with_twins(question.pieces_a, elements[:count]),
            with_twins(question.pieces_b, elements[count:]),
            elements[:count],
            elements[count:],
            further=question.further,
        )
    except DamagedStore as exc:
        return PlacementAnswer(Search(()), exc.message, damaged=True)
    except (ValueError, TypeError) as exc:  # elements that are not numbers, or in an unknown layout
        return PlacementAnswer(Search(()), str(exc))
    return PlacementAnswer(answer)


def compare_placed(pair: PlacedPair) -> PairComparison:
    """Compare a tensor that is put together from pieces; range by range, never a whole tensor.

    Memory: what `elements_of` takes, and some blocks of 1 Mi elements.

    Raises:
        StoreError: a store cannot be reached. Damage is reported in the result of the pair.
        DumpError: a file of a dump changed, or cannot be read.
    """
    running = RunningComparison()
    try:
        read_a, read_b, size = _readers(pair)
        for start in range(0, max(size, 1), _PIECE):  # once without elements, for the types
            stop = min(start + _PIECE, size)
            running.update(read_a(start, stop), read_b(start, stop))
    except (DamagedStore, ValueError, TypeError) as exc:
        return _failed(exc)
    return PairComparison(running.result())


def _readers(pair: PlacedPair) -> tuple[Callable[[int, int], Array], Callable[[int, int], Array], int]:
    """Return what reads a range of elements of either side, and how many there are."""
    elements = elements_of([*pair.a, *pair.b], in_order=True)
    of_a, of_b = elements[: len(pair.a)], elements[len(pair.a) :]
    a, b = trimmed(pair.assembly_a, pair.assembly_b), trimmed(pair.assembly_b, pair.assembly_a)
    return partial(a.read, of_a), partial(b.read, of_b), math.prod(b.shape)


def read_placed(pair: PlacedPair) -> tuple[Array, Array] | None:
    """Return all elements of both sides, 1-D; None if they cannot be read. Takes memory for both."""
    try:
        read_a, read_b, size = _readers(pair)
        return read_a(0, size), read_b(0, size)
    except (DamagedStore, ValueError, TypeError):
        return None


def each(function: Callable[[_Job], _Answer], batch: Sequence[_Job]) -> list[_Answer]:
    """Return what a function returns for each job of a batch."""
    return [function(job) for job in batch]


def pack(function: Callable[[Sequence[Any]], list[Any]], batch: Sequence[Any]) -> bytes:
    """Return the argument of `run_packed`."""
    return pickle.dumps((function, list(batch)), protocol=5)


def run_packed(packed: bytes) -> list[Any]:
    """Run a function of this module over a batch, in a task."""
    # Whoever reaches a Dask scheduler can run code on its workers, so unpickling adds no danger.
    function, batch = pickle.loads(packed)  # noqa: S301
    answers: list[Any] = function(batch)
    return answers


#: A tensor counts as turned if turning it makes it this many times closer to the other one.
_NEARER = 4.0


@dataclass(frozen=True, slots=True)
class TensorContent:
    """The content of one tensor; nothing if it could not be read."""

    digest: bytes = b""
    statistics: tuple[float, ...] = ()
    """In the order of `workers.arrays.statistics.FIELDS`; empty for types without statistics."""


def read_content(operand: Operand) -> TensorContent:
    """Return the content of a tensor. Reads it once, in pieces of 1 Mi elements.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    digest, statistics = new_digest(), RunningStatistics()
    summable = operand.device is None and has_statistics(operand.element)
    left = operand.size
    try:
        for piece in read_pieces(operand, _PIECE):
            digest.update(piece)
            if summable:
                values = unpack(piece, operand.element, left)
                left -= values.size
                statistics.update(values)
    except DamagedStore:
        return TensorContent()
    return TensorContent(digest.digest(), statistics.row() if summable else ())


def is_turned(pair: Pair) -> bool:
    """Return of two matrices whether B is A with its axes exchanged.

    `Pair.b` has the shape that it was dumped with: the shape of A, or the same with exchanged axes. Matrices
    of more than `MAX_REORDERED_NBYTES` are not read; if their shapes differ, they count as turned.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    a, b = pair.a, pair.b
    readable = is_numeric(a.element) and is_numeric(b.element)
    if not readable or max(a.nbytes, b.nbytes) > MAX_REORDERED_NBYTES:
        return a.shape != b.shape
    payloads = read_whole([a, b])
    if isinstance(payloads[0], DamagedStore) or isinstance(payloads[1], DamagedStore):
        return False
    try:
        first, second = a.values(payloads[0]), b.values(payloads[1])
    except ValueError:
        return False
    distances = []
    for other in (second, second.reshape(b.shape).T.reshape(-1)):
        running = RunningComparison()
        running.update(first, other)
        distances.append(running.result().rmse)
    return bool(distances[1] * _NEARER < distances[0] or (distances[1] == 0 < distances[0]))
