"""Which calls of two programs are the same, and what becomes of the others.

Programs differ in what was fused, recomputed, renamed, moved and left out, in the framework and in the order.
So, in rounds, until nothing changes:

1. Calls are the same in any order if no other call is nearly as likely on either side, and their results are
   the same, or all that they read comes from the same calls.
2. The others are aligned as sequences with gaps, in which these are fixed points.

Each round knows the pairs of the round before, and with them which calls have the same calls before and after
them. So an alignment goes on behind the first real difference, where no content agrees any more.

Sequences are aligned as by S. B. Needleman and C. D. Wunsch (J. Mol. Biol. 48, 1970), but a gap costs
nothing: pairs that keep the order on both sides, with the largest sum of scores. One row of the table of sums
is kept, and for each cell two bits that say from where its sum came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.questions.compare.alignment.calls import Numbers, OperatorCall, only_moves
from ingest.questions.compare.alignment.evidence import Evidence, Side
from ingest.questions.compare.matching import MatchedBy
from ingest.questions.compare.result import Why
from ingest.reader.operator_kinds import is_container

Row: TypeAlias = npt.NDArray[np.int64]


def align_sequences(score_row: Callable[[int], Row], count_a: int, count_b: int) -> list[tuple[int, int]]:
    """Return pairs of places in A and B, ascending on both sides, whose scores add up to the most.

    Takes time in proportion to the product of both lengths, in numpy (about 0.2 s for 5000 by 5000), and
    memory for two bits of each pair (6 MB).

    Args:
        score_row: returns the scores of a place of A with all of B, (B,); 0 or less: they are not the same.
        count_a: the length of A.
        count_b: the length of B.
    """
    best: Row = np.zeros(count_b + 1, np.int64)
    moves = []
    for place in range(count_a):
        above, best, scores = best, best.copy(), score_row(place)
        best[1:] = np.maximum(above[1:], np.where(scores > 0, above[:-1] + scores, 0))
        best = np.maximum.accumulate(best)
        moves.append(np.packbits([best[1:] == best[:-1], best[1:] == above[1:]], axis=1))
    pairs, column = list[tuple[int, int]](), count_b
    for place in reversed(range(count_a)):
        from_left, from_above = np.unpackbits(moves[place], axis=1, count=count_b)
        while column and from_left[column - 1]:
            column -= 1
        if column and not from_above[column - 1]:
            column -= 1
            pairs.append((place, column))
    return pairs[::-1]


#: By how many points a call must be ahead of all others to be the same in any order.
_AHEAD = 4
#: Points for a fixed point of a sequence, besides its own.
_FIXED = 16
_ROUNDS = 3
_NONE = -1


@dataclass(frozen=True, slots=True)
class AlignedCalls:
    """Two calls that are the same."""

    a: int
    b: int
    because: MatchedBy
    """What shows it: `exact` if it was known before."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A call that only one side has."""

    side: str
    """`A` or `B`."""
    number: int
    why: Why
    of: int | None = None
    """The call that has the same result, of its own side; or that does it, too, of the other side."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """All calls of two programs: paired, or not."""

    pairs: tuple[AlignedCalls, ...]
    """By the number in A."""
    gaps: tuple[Gap, ...]
    """Those of A, then those of B, each in order of execution."""


def align(
    a: Sequence[OperatorCall], b: Sequence[OperatorCall], known: Mapping[int, int] | None = None
) -> Alignment:
    """Align two programs.

    Takes time in proportion to the product of their lengths: 1 s for 2000 by 2000 calls; memory for 32 MB of
    sums at the most, and what is proportional to the lengths.

    Args:
        a: the calls of A, in order of execution.
        b: the calls of B, in order of execution.
        known: calls of B by those of A that are the same for certain.
    """
    evidence = Evidence.of(a, b)
    fixed = dict(known or {})
    pairs = dict(fixed)
    for _ in range(_ROUNDS):
        evidence.pairs = pairs
        rows = _Rows(evidence, {**_anchors(evidence, fixed), **fixed})
        aligned = dict(align_sequences(rows.row, len(a), len(b)))
        aligned.update(rows.anchors)
        if aligned == pairs:
            break
        pairs = aligned
    evidence.pairs = pairs
    return Alignment(
        tuple(AlignedCalls(i, j, _because(evidence, i, j, fixed)) for i, j in sorted(pairs.items())),
        (*_gaps(evidence, "A"), *_gaps(_turned(evidence), "B")),
    )


@dataclass(slots=True, eq=False)
class _Rows:
    """Points of pairs of which some are fixed: members of these have none with others."""

    evidence: Evidence
    anchors: dict[int, int]
    taken: Numbers | None = None

    def row(self, number: int) -> Numbers:
        """Return the points of a call of A with all of B, (B,)."""
        count = len(self.evidence.b.calls)
        if number in self.anchors:
            points = np.zeros(count, np.int64)
            points[self.anchors[number]] = _FIXED + self.evidence.row(number)[self.anchors[number]]
            return points
        if self.taken is None:
            self.taken = np.array(sorted(self.anchors.values()), np.int64)
        points = self.evidence.row(number)
        points[self.taken] = 0
        return points


def _anchors(evidence: Evidence, fixed: Mapping[int, int]) -> dict[int, int]:
    """Return the calls that are the same whatever the order: none other is nearly as likely."""
    count = len(evidence.b.calls)
    taken = np.array(sorted(fixed.values()), np.int64)
    best = np.zeros(count, np.int64)
    second = np.zeros(count, np.int64)
    best_of = np.full(count, _NONE)
    candidates: dict[int, int] = {}
    for number in range(len(evidence.a.calls)):
        if number in fixed or not count:
            continue
        points = evidence.row(number)
        points[taken] = 0
        higher = points > best
        second = np.where(higher, best, np.maximum(second, points))
        best = np.where(higher, points, best)
        best_of[higher] = number
        top = int(points.argmax())
        if points[top] >= np.delete(points, top).max(initial=0) + _AHEAD:
            candidates[number] = top
    return {
        number: other
        for number, other in candidates.items()
        if best_of[other] == number
        and best[other] >= second[other] + _AHEAD
        and (evidence.has_same_result(number, other) or evidence.has_same_sources(number, other))
    }


def _because(evidence: Evidence, number: int, other: int, fixed: Mapping[int, int]) -> MatchedBy:
    call_a, call_b = evidence.a.calls[number], evidence.b.calls[other]
    if fixed.get(number) == other:
        return MatchedBy.EXACT
    if evidence.has_same_result(number, other):
        return MatchedBy.CONTENT
    if evidence.has_same_sources(number, other):
        return MatchedBy.PRODUCERS
    return MatchedBy.SCOPE if call_a.scope and call_a.scope == call_b.scope else MatchedBy.SEQUENCE


def _turned(evidence: Evidence) -> Evidence:
    """Return the evidence with B as A."""
    return Evidence(evidence.b, evidence.a, evidence.weak, {b: a for a, b in evidence.pairs.items()})


def _gaps(evidence: Evidence, side: str) -> list[Gap]:
    """Explain the gaps: the calls of A that have no counterpart."""
    fused = _fused_into(evidence)
    by_result: dict[tuple[int, tuple[int, ...]], int] = {}
    for number in evidence.pairs:
        by_result.setdefault(_done(evidence, number), number)
    gaps = []
    for number, call in enumerate(evidence.a.calls):
        if number in evidence.pairs:
            continue
        again = by_result.get(_done(evidence, number))
        if is_container(call.op_type):
            gaps.append(Gap(side, number, Why.CONTAINS))
        elif only_moves(call.op_type):
            gaps.append(Gap(side, number, Why.MOVES))
        elif again is not None and int(evidence.a.result[number]) >= 0 and call.inputs:
            gaps.append(Gap(side, number, Why.RECOMPUTED, again))
        elif number in fused:
            gaps.append(Gap(side, number, Why.FUSED, fused[number]))
        else:
            gaps.append(Gap(side, number, _why_unmatched(evidence.a, number)))
    return gaps


def _why_unmatched(side: Side, number: int) -> Why:
    call = side.calls[number]
    return Why.UNUSED if call.inputs and call.outputs and not side.readers[number] else Why.UNKNOWN


def _done(evidence: Evidence, number: int) -> tuple[int, tuple[int, ...]]:
    return int(evidence.a.result[number]), tuple(sorted(evidence.a.inputs[number]))


def _fused_into(evidence: Evidence) -> dict[int, int]:
    """Return by call of A without a counterpart which call of B does it, too, or comes right behind it.

    That is the counterpart of the call that first reads what it writes, maybe by way of others without one.
    The counterpart must read what this one reads or writes, or do what it does.
    """
    a, b = evidence.a, evidence.b
    into: dict[int, int] = {}
    for number in reversed(range(len(a.calls))):
        if number in evidence.pairs or not a.readers[number] or a.is_parameter[number]:
            continue
        reader = a.readers[number][0]
        end = evidence.pairs.get(reader, into.get(reader, _NONE))
        if end == _NONE:
            continue
        read = {*a.inputs[number], int(a.result[number])}
        does_it = bool((b.kinds[end] & a.kinds[number]).any())
        if reader in into or does_it or read & set(b.inputs[end]) or only_moves(a.calls[number].op_type):
            into[number] = end
    return into
