"""Where tensors that must agree do not: which ranks are off, since when, and what shows the cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.identities.difference import Level, named_difference, shape_of_difference
from ingest.identities.limits import unit_roundoff
from ingest.questions.divergence.agreement import AgreementOfRanks
from ingest.questions.divergence.expectations import BlockVerdict, Expectations, Partition, TensorHistory
from ingest.questions.divergence.result import Difference, Odd
from ingest.questions.placement.slot_kinds import WORDS, SlotKind
from ingest.questions.placement.sums import Array, StepElements
from ingest.reader.choice import named_ranges
from ingest.reader.step_statistics import StepStatistics
from workers.arrays.statistics import FIELDS
from workers.store.consolidated.blocks import Block, TensorKey

#: Steps that are read again for the order of execution and the values of the first difference.
_MAX_DETAILED = 32
#: The most elements of a tensor of which is looked at what differs.
_MOST = 16 * 1024 * 1024


class _Culprit(NamedTuple):
    """Which ranks are off, and in which group, given by their places."""

    places: tuple[int, ...]
    has_majority: bool
    block: tuple[int, ...]


@dataclass(slots=True)
class Differing:
    """A difference, the number of its tensor, and the steps in which it differs, by their places in order."""

    tensor: int
    difference: Difference
    numbers: list[int]


class DifferenceFinder:
    """Judges tensors that behave alike, and counts what agrees in each group."""

    def __init__(
        self, expectations: Expectations, seen: AgreementOfRanks, ranks: Sequence[int], steps: Sequence[int]
    ) -> None:
        """Judge by these expectations; `ranks` and `steps` are named in the answer."""
        self._expectations, self._seen = expectations, seen
        self._ranks, self._steps = ranks, steps
        self.groups: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}
        """By the places of its ranks: tensors that must agree; how often they were compared, and agreed."""

    def find(
        self, tensors: Sequence[int], history: TensorHistory, expected: Partition
    ) -> Iterator[Differing]:
        """Yield where these tensors, which behave alike, do not agree as they must."""
        for block in expected:
            self.groups.setdefault(block, np.zeros(3, np.int64))[0] += len(tensors)
        found: dict[_Culprit, list[int]] = {}
        first: dict[_Culprit, BlockVerdict] = {}
        agreed_last: dict[tuple[int, ...], int] = {}
        for number, pattern in enumerate(history.patterns):
            for verdict in self._expectations.verdicts(pattern, expected):
                self.groups[verdict.block] += len(tensors) * np.array([0, 1, verdict.agrees])
                if verdict.agrees:
                    agreed_last[verdict.block] = number
                    continue
                for places in verdict.suspects:
                    culprit = _Culprit(places, verdict.has_majority, verdict.block)
                    first.setdefault(culprit, verdict)
                    found.setdefault(culprit, []).append(number)
        _settle_ties(found)
        for culprit, numbers in found.items():
            others = first[culprit].agreeing if culprit.has_majority else ()
            for tensor in tensors:
                difference = Difference(
                    key=self._seen.keys[tensor],
                    ranks=self._named(culprit.places),
                    has_majority=culprit.has_majority,
                    others=self._named(others),
                    why=WORDS[history.kind],
                    first_step=self._steps[numbers[0]],
                    last_step=self._steps[numbers[-1]],
                    steps=len(numbers),
                    healed=agreed_last.get(culprit.block, -1) > numbers[-1],
                    by="statistics" if first[culprit].by_statistics else "digest",
                    same_statistics=False,
                )
                yield Differing(tensor, difference, numbers)

    def _named(self, places: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._ranks[place] for place in places)


def _settle_ties(found: dict[_Culprit, list[int]]) -> None:
    """Count a difference of two ranks against the one that a majority showed to be off in another step."""
    for culprit, tie in list(found.items()):
        if culprit.has_majority or len(culprit.places) != 2:
            continue
        alone = (culprit._replace(places=(place,), has_majority=True) for place in culprit.places)
        known = [rank for rank in alone if rank in found]
        if len(known) == 1:
            found[known[0]] = sorted({*found[known[0]], *tie})
            del found[culprit]


def ordered(rows: Sequence[Differing], statistics: StepStatistics) -> tuple[list[Odd], list[Difference]]:
    """Return where each odd rank began to be off, and all differences; both by step and order of execution.

    Memory: one step of all ranks, see `StepStatistics`; and three tensors of at most 16 Mi elements.

    Raises:
        DamagedStore: the index of a step is missing or damaged.
    """
    by_ranks: dict[tuple[tuple[int, ...], bool], list[Differing]] = {}
    for row in rows:
        by_ranks.setdefault((row.difference.ranks, row.difference.has_majority), []).append(row)
    begun: dict[int, list[list[Differing]]] = {}
    for members in by_ranks.values():
        begun.setdefault(min(row.difference.first_step for row in members), []).append(members)
    order: dict[tuple[int, int], int] = {}
    odd: list[tuple[int, int, Odd]] = []
    for count, step in enumerate(sorted(begun)):
        block = statistics.block(step) if count < _MAX_DETAILED else None
        for members in begun[step]:
            first_rows = [row for row in members if row.difference.first_step == step]
            for row in first_rows:
                place = row.tensor if block is None else _row(block, row.difference.ranks[0], row.tensor)
                order.setdefault((step, row.tensor), place)
                ranks = row.difference.ranks
                pair = ranks[0], (row.difference.others or ranks[1:])[0]
                by_digest = row.difference.by == "digest"
                if block is not None and by_digest and not _values(block, row.tensor, *pair):
                    row.difference = replace(row.difference, same_statistics=True)
            first = min(first_rows, key=lambda row: order[step, row.tensor])
            odd.append((step, order[step, first.tensor], _onset(first, members, statistics, block)))
    rows = sorted(
        rows,
        key=lambda row: (
            row.difference.first_step,
            order.get((row.difference.first_step, row.tensor), row.tensor),
        ),
    )
    odd.sort(key=lambda entry: entry[:2])
    return [onset for _, _, onset in odd], [row.difference for row in rows]


def _row(block: Block, rank: int, tensor: int) -> int:
    """Return the row of a tensor in the tables of a rank: rows are in the order of execution."""
    return int(block.row[block.ranks.index(rank), tensor])


def _values(block: Block, tensor: int, off: int, other: int) -> dict[str, tuple[float, float]]:
    """Return the statistics of a tensor that differ between a rank that is off and another one."""
    pair = [block.statistics[block.ranks.index(rank), tensor] for rank in (off, other)]
    return {
        name: (float(a), float(b))
        for name, a, b in zip(FIELDS, *pair, strict=True)
        if a != b and not (np.isnan(a) and np.isnan(b))
    }


def _onset(
    first: Differing,
    members: Sequence[Differing],
    statistics: StepStatistics,
    block: Block | None,
) -> Odd:
    """Return where the ranks of these differences began to be off, and what is known of the cause."""
    difference = first.difference
    onset = Odd(
        difference.ranks,
        difference.has_majority,
        difference.others,
        difference.first_step,
        difference,
        source="",
        values={},
        tensors=len({row.tensor for row in members}),
        steps=len({number for row in members for number in row.numbers}),
        last_step=max(row.difference.last_step for row in members),
        healed=all(row.difference.healed for row in members),
    )
    if block is None:
        return onset
    onset = _explained(onset, first, statistics, block)
    off, other = onset.ranks[0], (onset.others or onset.ranks[1:])[0]
    opened = statistics.snapshot.step(off, difference.first_step)
    if opened is not None:
        source = str(opened.tables.label("source")[_row(block, off, first.tensor)])
        opened.forget_tables()
        onset = replace(onset, source=source)
    return replace(onset, values=_values(block, first.tensor, off, other))


def _explained(onset: Odd, first: Differing, statistics: StepStatistics, block: Block) -> Odd:
    """Return an onset with the elements that differ, and with the cause if values show it."""
    tensor = first.tensor
    earlier = [step for step in statistics.snapshot.steps if step < block.step][:-3:-1]
    now, *before = [
        StepElements(statistics.snapshot, one) for one in (block, *map(statistics.block, earlier))
    ]
    if len(before) == 2 and first.difference.why != WORDS[SlotKind.OTHER]:
        stale = _stale(now, *before, tensor=tensor, ranks=tuple(sorted({*onset.ranks, *onset.others})))
        if stale:
            text = f"{named_ranges('rank', stale)} still holds what it held in step {earlier[0]}"
            return _blaming(onset, stale, "stale value", Level.SHOWN, text)
    pair = onset.ranks[0], (onset.others or onset.ranks[1:])[0]
    size = float(block.statistic("count")[block.ranks.index(pair[1]), tensor])
    values = now.by_rank(pair, tensor) if size <= _MOST else None
    if not values or len({(own.shape, own.dtype) for own in values.values()}) > 1:
        return onset
    mine, theirs = values.values()
    shape = shape_of_difference(theirs, mine)
    cause = named_difference(shape)
    is_open = bool(cause) and not onset.has_majority and len(onset.ranks) == 2
    last = before[0].by_rank(pair[1:], tensor) if before and is_open else None
    if last and last[pair[1]].shape == mine.shape:
        gradient = _gradient(statistics, first.difference.key, before[0], pair[1])
        if blamed := _does_not_follow(last[pair[1]], gradient, mine, theirs):
            odd = pair[blamed[0]]
            return _blaming(onset, (odd,), cause, blamed[1], f"{shape}; {blamed[2].format(odd)}")
    return replace(onset, cause=cause, level=Level.SHOWN if cause else Level.OPEN, evidence=str(shape))


def _stale(
    now: StepElements, before: StepElements, earlier: StepElements, *, tensor: int, ranks: Sequence[int]
) -> tuple[int, ...]:
    """Return the ranks that alone did not get a new value, if all got one in the step before."""
    stale = tuple(rank for rank in ranks if _is_same(now, before, rank, tensor))
    moved = not any(_is_same(before, earlier, rank, tensor) for rank in ranks)
    return stale if moved and len(stale) < len(ranks) else ()


def _blaming(onset: Odd, odd: tuple[int, ...], cause: str, level: Level, evidence: str) -> Odd:
    others = tuple(rank for rank in sorted({*onset.ranks, *onset.others}) if rank not in odd)
    return replace(
        onset, ranks=odd, others=others, has_majority=True, cause=cause, level=level, evidence=evidence
    )


def _is_same(now: StepElements, before: StepElements, rank: int, tensor: int) -> bool:
    return (
        rank in now.holders(tensor)
        and rank in before.holders(tensor)
        and any(now.content(rank, tensor))
        and now.content(rank, tensor) == before.content(rank, tensor)
    )


def _gradient(statistics: StepStatistics, key: TensorKey, before: StepElements, rank: int) -> Array | None:
    place = statistics.axis.place(key._replace(op_type="Gradient"))
    known = before.by_rank((rank,), place) if place is not None else None
    return known[rank] if known else None


def _does_not_follow(
    last: Array, gradient: Array | None, mine: Array, theirs: Array
) -> tuple[int, Level, str] | None:
    """Return which of two values does not follow from the last one, 0 or 1, and why.

    Where both agree, the update is a multiple of the gradient (SGD), or else has some largest size; where
    they differ, one may have such an update, and the other not.
    """
    differs = np.asarray(mine != theirs)
    updates = [values.astype(np.float64) - last.astype(np.float64) for values in (mine, theirs)]
    usual = updates[0][~differs]
    if not usual.size:
        return None
    if gradient is not None and gradient.shape == last.shape and gradient.any():
        slopes = gradient.astype(np.float64)
        rate = float(usual @ slopes[~differs] / max(float(slopes[~differs] @ slopes[~differs]), 1e-300))
        limit = 8 * unit_roundoff(last.dtype) * (np.abs(last) + 4 * np.abs(rate * slopes))
        off = [np.abs(update - rate * slopes) > limit for update in updates]
        if rate and not off[0][~differs].any() and off[0].any() != off[1].any():
            text = f"of rank {{}}, it does not follow from the step before and its gradient times {rate:.4g}"
            return int(off[1].any()), Level.SHOWN, f"{text}; all others do"
    largest = float(np.abs(usual).max())
    sizes = [float(np.abs(update[differs]).max()) for update in updates]
    if largest and min(sizes) <= largest and max(sizes) > 4 * largest:
        text = f"rank {{}} changed there by {max(sizes):.3g} in a step, and nowhere else by more than "
        return int(sizes[1] > sizes[0]), Level.LIKELY, f"{text}{largest:.3g}"
    return None
