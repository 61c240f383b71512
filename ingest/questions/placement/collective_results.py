"""Finds results of collectives: tensors that equal the reduced or gathered pieces of an earlier tensor."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from ingest.questions.compare.by_marginals import propose
from ingest.questions.compare.held_tensors import HeldTensors
from ingest.questions.compare.runner import PairRunner, answer_each
from ingest.questions.placement.decide import Certainty, Decision, decide
from ingest.questions.placement.equal_holders import EqualHolders
from workers.arrays.sharded.placement_search import is_sum
from workers.tasks.compare import PlacementQuestion, search_placements

#: How many tensors that all ranks have are tried as what pieces make up.
_AHEAD = 3


def find_collective_results(
    held: HeldTensors,
    holders_of: Mapping[int, EqualHolders],
    runner: PairRunner,
    asked: Container[int] | None = None,
) -> dict[int, tuple[int, str]]:
    """Return, for each tensor held in pieces, the replicated tensor that its pieces make up, and how.

    Args:
        held: the tensors of a step.
        holders_of: by tensor, which ranks hold the same bytes.
        runner: reads elements.
        asked: the numbers of the tensors that are tried; default: all.
    """
    pairs = [
        (number, other)
        for number, holders in holders_of.items()
        if (asked is None or number in asked) and holders.is_distinct and _is_open(held, number)
        for other in _next_replicated(held, holders_of, number)
    ]
    kept = [pair for pair in pairs if not is_removed(held, pair)]
    whole = _by_elements(held, kept, runner)
    for number, other in pairs:
        if is_removed(held, (number, other)) and number not in whole:
            proposal = propose(held, number, held, other)
            if proposal and (placement := _making_up(proposal.decision, Certainty.BY_MARGINALS)):
                whole[number] = other, placement
    return whole


def _is_open(held: HeldTensors, number: int) -> bool:
    """Return whether a tensor is in the dump, and nothing tells how ranks hold it."""
    return held.is_dumped(number) and not held.told(number)


def _by_elements(
    held: HeldTensors, pairs: Sequence[tuple[int, int]], runner: PairRunner
) -> dict[int, tuple[int, str]]:
    """Return by tensor the first of its pairs that elements confirm, and how its pieces make that up."""
    questions = [
        PlacementQuestion(
            held.operands(number),
            held.operands(other)[:1],
            held.pieces(number),
            held.pieces(other).first,
        )
        for number, other in pairs
    ]
    whole: dict[int, tuple[int, str]] = {}
    for (number, other), answer in zip(pairs, answer_each(runner, search_placements, questions), strict=True):
        decision = decide(answer.search, (held.dtype(number), held.dtype(other)))
        if number not in whole and (placement := _making_up(decision, Certainty.CERTAIN)):
            whole[number] = other, placement
    return whole


def is_removed(held: HeldTensors, pair: tuple[int, int]) -> bool:
    """Return whether the elements of one of two tensors were removed from the store."""
    return any(map(held.is_removed, pair))


def _making_up(decision: Decision, least: Certainty) -> str:
    """Return how pieces make up a tensor: cut or summed; "" if that is not as certain, or they do not."""
    if decision.certainty is not least or decision.way is None:
        return ""
    own = decision.way.a
    return str(own) if is_sum(own) or own.kind.startswith("shard") else ""


def _next_replicated(held: HeldTensors, holders_of: Mapping[int, EqualHolders], number: int) -> list[int]:
    """Return the next tensors that all ranks have alike, with as many axes as this one."""
    shape = held.shapes(number)[0]
    fitting = []
    for other in range(number + 1, len(held.keys)):
        if holders_of[other].is_replicated and held.is_dumped(other):
            if len(held.shapes(other)[0]) == len(shape) > 0:
                fitting.append(other)
            if len(fitting) == _AHEAD or other > number + 4 * _AHEAD:
                break
    return fitting
