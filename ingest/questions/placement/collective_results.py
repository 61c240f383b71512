"""Finds results of collectives: tensors that equal the reduced or gathered pieces of an earlier tensor.

Statistics exclude nearly every pair: the elements of pieces and of what they make up have one sum. Of the
pairs that are left, marginals tell it, or elements, once for each kind of tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ingest.questions.compare.held_tensors import HeldTensors, propose
from ingest.questions.compare.runner import PairRunner, answer_each
from ingest.questions.divergence.agreement import AgreementOfRanks
from ingest.questions.placement.agree import kind_of
from ingest.questions.placement.decide import Certainty, Decision, decide, fit_limit
from workers.arrays.sharded.placement_search import is_sum
from workers.arrays.statistics import FIELDS
from workers.tasks.compare import PlacementQuestion, search_placements

#: How many tensors that all ranks have are tried as what pieces make up.
_AHEAD = 3
#: Tensors of a kind of which elements are read, until one of them shows it.
_OF_A_KIND = 2
_COUNT, _MEAN, _NORM = (FIELDS.index(name) for name in ("count", "mean", "l2_norm"))


def find_collective_results(
    held: HeldTensors, seen: AgreementOfRanks, number: int, places: Sequence[int], runner: PairRunner
) -> dict[int, tuple[int, str]]:
    """Return, for each tensor held in pieces, the replicated tensor that its pieces make up, and how.

    Args:
        held: the tensors of a step.
        seen: who holds the same.
        number: the step in `seen`.
        places: of the tensors of `held` in `seen`.
        runner: reads elements.
    """
    kinds: dict[object, list[tuple[int, int]]] = {}
    for own, place in enumerate(places):
        if seen.is_distinct(number, place) and held.is_dumped(own) and not held.told(own):
            for other in _next_replicated(held, seen, number, places, own):
                if _may_make_up(held, own, other):
                    kinds.setdefault((kind_of(held.keys[own], 0), kind_of(held.keys[other], 0)), []).append(
                        (own, other)
                    )
    asked = [pair for pairs in kinds.values() for pair in pairs[:_OF_A_KIND]]
    shown = _by_elements(held, [pair for pair in asked if not is_removed(held, pair)], runner)
    for pair in asked:
        if is_removed(held, pair) and (proposal := propose(held, pair[0], held, pair[1])):
            shown[pair] = _making_up(proposal.decision, Certainty.BY_MARGINALS)
    whole: dict[int, tuple[int, str]] = {}
    for pairs in kinds.values():
        ways = [shown[pair] for pair in pairs[:_OF_A_KIND] if shown.get(pair)]
        for own, other in pairs if ways else ():
            whole.setdefault(own, (other, ways[0]))
    return whole


def _may_make_up(held: HeldTensors, own: int, other: int) -> bool:
    """Return whether the sum of all elements of the pieces is that of a tensor, or a multiple of it.

    Of a mean over some ranks, it is as many times that of the tensor; if statistics are not known, it may be.
    """
    pieces = np.array([held.ranks[rank].statistics[place] for rank, place in held.holders[own]])
    rank, place = held.holders[other][0]
    whole = held.ranks[rank].statistics[place]
    total, expected = float((pieces[:, _MEAN] * pieces[:, _COUNT]).sum()), float(whole[_MEAN] * whole[_COUNT])
    size = float(np.sqrt((pieces[:, _NORM] ** 2).sum() * whole[_COUNT])) + float(whole[_NORM]) * math.sqrt(
        whole[_COUNT]
    )
    limit = fit_limit((held.dtype(own), held.dtype(other))) * size
    if not math.isfinite(total + expected + size):
        return True
    count = len(pieces)
    return any(
        abs(total - expected * parts) <= limit * parts for parts in range(1, count + 1) if not count % parts
    )


def _by_elements(
    held: HeldTensors, pairs: Sequence[tuple[int, int]], runner: PairRunner
) -> dict[tuple[int, int], str]:
    """Return by pair how the pieces make up the tensor; "" if elements do not show it."""
    questions = [
        PlacementQuestion(
            held.operands(own), held.operands(other)[:1], held.pieces(own), held.pieces(other).first
        )
        for own, other in pairs
    ]
    return {
        pair: _making_up(decide(answer.search, tuple(map(held.dtype, pair))), Certainty.CERTAIN)
        for pair, answer in zip(pairs, answer_each(runner, search_placements, questions), strict=True)
    }


def is_removed(held: HeldTensors, pair: tuple[int, int]) -> bool:
    """Return whether the elements of one of two tensors were removed from the store."""
    return any(map(held.is_removed, pair))


def _making_up(decision: Decision, least: Certainty) -> str:
    """Return how pieces make up a tensor: cut or summed; "" if that is not as certain, or they do not."""
    if decision.certainty is not least or decision.way is None:
        return ""
    own = decision.way.a
    return str(own) if is_sum(own) or own.kind.startswith("shard") else ""


def _next_replicated(
    held: HeldTensors, seen: AgreementOfRanks, number: int, places: Sequence[int], own: int
) -> Iterator[int]:
    """Yield the next tensors that all ranks have alike, with as many axes as this one."""
    axes, found = len(held.shapes(own)[0]), 0
    for other in range(own + 1, min(own + 2 + 4 * _AHEAD, len(places))):
        if seen.is_replicated(number, places[other]) and held.is_dumped(other):
            if len(held.shapes(other)[0]) == axes > 0:
                found += 1
                yield other
            if found == _AHEAD:
                return
