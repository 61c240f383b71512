"""Compares tensors that several ranks hold in pieces: how they hold them, and how much two sides differ."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.arrays.comparison import RunningComparison
from workers.arrays.sharded.assembly import Assembly
from workers.arrays.sharded.placement_search import Pieces, Search, search, trimmed
from workers.errors import DamagedStore
from workers.tasks.compare import PairComparison
from workers.tasks.operands import Operand
from workers.tasks.piece_elements import elements_of, with_twins

#: Elements of both sides that are compared at a time.
_PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PlacementQuestion:
    """The pieces of one tensor on two sides, of which it is asked how they make it up."""

    a: tuple[Operand, ...]
    b: tuple[Operand, ...]
    pieces_a: Pieces
    pieces_b: Pieces

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


def search_placements(questions: Sequence[PlacementQuestion]) -> list[PlacementAnswer]:
    """Answer each question.

    Memory: for one question at a time, what `elements_of` takes, and twice 256 Ki elements.

    Raises:
        StoreError: a store cannot be reached. Damage is reported in the answer.
        DumpError: a file of a dump changed, or cannot be read.
    """
    return [_search(question) for question in questions]


def _search(question: PlacementQuestion) -> PlacementAnswer:
    try:
        elements = elements_of([*question.a, *question.b])
        count = len(question.a)
        answer = search(
            with_twins(question.pieces_a, elements[:count]),
            with_twins(question.pieces_b, elements[count:]),
            elements[:count],
            elements[count:],
        )
    except DamagedStore as exc:
        return PlacementAnswer(Search(()), exc.message, damaged=True)
    except (ValueError, TypeError) as exc:  # elements that are not numbers, or in an unknown layout
        return PlacementAnswer(Search(()), str(exc))
    return PlacementAnswer(answer)


def compare_placed(pairs: Sequence[PlacedPair]) -> list[PairComparison]:
    """Compare tensors that are put together from pieces; range by range, never a whole tensor.

    Memory: for one pair at a time, what `elements_of` takes, and some blocks of 1 Mi elements.

    Raises:
        StoreError: a store cannot be reached. Damage is reported in the result of the pair.
        DumpError: a file of a dump changed, or cannot be read.
    """
    return [_compare(pair) for pair in pairs]


def _compare(pair: PlacedPair) -> PairComparison:
    running = RunningComparison()
    try:
        elements = elements_of([*pair.a, *pair.b], in_order=True)
        count = len(pair.a)
        a, b = trimmed(pair.assembly_a, pair.assembly_b), trimmed(pair.assembly_b, pair.assembly_a)
        size = math.prod(b.shape)
        for start in range(0, max(size, 1), _PIECE):  # once without elements, for the types
            stop = min(start + _PIECE, size)
            running.update(a.read(elements[:count], start, stop), b.read(elements[count:], start, stop))
    except DamagedStore as exc:
        return PairComparison(None, problem=exc.message, damaged=True)
    except (ValueError, TypeError) as exc:
        return PairComparison(None, problem=str(exc))
    return PairComparison(running.result())


def pack(function: Callable[[Sequence[Any]], list[Any]], batch: Sequence[Any]) -> bytes:
    """Return the argument of `run_packed`."""
    return pickle.dumps((function, list(batch)), protocol=5)


def run_packed(packed: bytes) -> list[Any]:
    """Run a function of this module over a batch, in a task."""
    # Whoever reaches a Dask scheduler can run code on its workers, so unpickling adds no danger.
    function, batch = pickle.loads(packed)  # noqa: S301
    answers: list[Any] = function(batch)
    return answers
