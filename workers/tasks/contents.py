"""What tells tensors of unknown content apart: digests and statistics; in a thread or a Dask task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.arrays.comparison import RunningComparison, is_numeric
from workers.arrays.digest import new_digest
from workers.arrays.dtypes import unpack
from workers.arrays.statistics import RunningStatistics, has_statistics
from workers.errors import DamagedStore
from workers.tasks.compare import MAX_REORDERED_NBYTES, Pair
from workers.tasks.operands import Operand, read_pieces, read_whole

#: Elements of a piece.
_PIECE = 1024 * 1024
#: A tensor counts as turned if turning it makes it this many times closer to the other one.
_NEARER = 4.0


@dataclass(frozen=True, slots=True)
class TensorContent:
    """The content of one tensor; nothing if it could not be read."""

    digest: bytes = b""
    statistics: tuple[float, ...] = ()
    """In the order of `workers.arrays.statistics.FIELDS`; empty for types without statistics."""


def read_contents(operands: Sequence[Operand]) -> list[TensorContent]:
    """Return the content of each tensor. Reads each once, in pieces of 1 Mi elements.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    return [_content_of(operand) for operand in operands]


def _content_of(operand: Operand) -> TensorContent:
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


def are_turned(pairs: Sequence[Pair]) -> list[bool]:
    """Return of each pair of matrices whether B is A with its axes exchanged.

    `Pair.b` has the shape that it was dumped with: the shape of A, or the same with exchanged axes. Matrices
    of more than `MAX_REORDERED_NBYTES` are not read; if their shapes differ, they count as turned.

    Raises:
        StoreError: a store cannot be reached.
        DumpError: a file of a dump changed, or cannot be read.
    """
    return [_is_turned(pair) for pair in pairs]


def _is_turned(pair: Pair) -> bool:
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
