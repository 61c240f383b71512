"""How the ranks of one run hold its tensors, without a reference.

Equal digests show replicas. What differs from rank to rank may be shards, partial sums, or the work of ranks
on other data; that is told by the dump, or by a tensor soon after it that all ranks have and that the pieces
make up: a sum that was reduced, or shards that were gathered. Statistics exclude nearly every pair: the
elements of pieces and of what they make up have one sum. Of the pairs that are left, marginals tell it, or
elements, once for each kind of tensor. What none of these shows is left open.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np

from ingest.questions.compare.held_tensors import HeldTensors, hold_together
from ingest.questions.compare.placing import propose
from ingest.questions.compare.runner import PairRunner, answer_each
from ingest.questions.compare.sources import load_step
from ingest.questions.divergence.agreement import ABSENT, AgreementOfRanks, observe
from ingest.questions.placement.agree import Kind, kind_of
from ingest.questions.placement.decide import Certainty, Decision, decide, fit_limit
from ingest.questions.placement.layout_answer import PlacedKind, RunLayout
from ingest.questions.placement.mistakes import MistakeSearch
from ingest.questions.placement.replicas import ReplicaCounts
from ingest.questions.placement.slot_kinds import SlotKind
from ingest.questions.question import Option, Partial, Question
from ingest.reader.catalog import Catalog
from ingest.reader.choice import format_ranges
from ingest.reader.snapshot import PARTIAL_HINT, Snapshot, ask_of_undamaged, refuse_url, take_snapshot
from ingest.reader.step_statistics import StepStatistics
from workers.arrays.sharded.placement_search import is_sum
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, UsageError
from workers.tasks.compare import PlacementQuestion, search_placement

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
            shown[pair] = _making_up(proposal[0], Certainty.BY_MARGINALS)
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
        for pair, answer in zip(pairs, answer_each(runner, search_placement, questions), strict=True)
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


def layout(
    store: Catalog,
    step: Annotated[int | None, Option("Only this step.", short="-n", kind=int)] = None,
    *,
    include_partial: Partial = False,
) -> RunLayout:
    """Show how the ranks of a run hold its tensors, and name ranks that hold what they should not.

    Digests decide, and what the dump tells. Of tensors that differ from rank to rank, the statistics of at
    most three tensors that they may make up are compared, and then elements, once for each kind of tensor; of
    large ones, parts. Where `gc` has removed them, marginals tell it, if the step has any: estimated. What
    linear layers give is computed where ranks differ in a way that needs a reason; elsewhere, for the
    first 8 Mi elements.

    Exits with 5 if values show a mistake: a missing or doubled reduction, a wrong group, a wrong shard, a
    bias on every rank, an optimizer state out of step; each once, where it is first.

    Raises:
        UsageError: the store does not have the step, or has no step that is complete on two ranks.
        DamagedStore: no step can be read on two ranks.
    """
    refuse_url(store)
    chosen = take_snapshot(store, None, step, include_partial=include_partial)
    return ask_of_undamaged(chosen, _layout_of)


def _layout_of(snapshot: Snapshot) -> RunLayout:
    url, ranks = snapshot.store.url, tuple(snapshot.ranks)
    hint = PARTIAL_HINT if snapshot.left_out else "`dump-ingest ls` lists all ranks and steps."
    shared = snapshot.only(steps=[step for step in snapshot.steps if len(snapshot.of_step(step)) > 1])
    if not shared.steps:
        damaged = [left for left in snapshot.left_out if left.is_damaged]
        first = f" ({(damaged or snapshot.left_out)[0]})" if snapshot.left_out else ""
        if damaged:
            raise DamagedStore(f"{url}: no step can be read on two ranks{first}")
        if len(ranks) < 2:
            text = f"only rank {format_ranges(ranks)} has complete steps: a layout takes several ranks"
            raise UsageError(f"{url}: {text}", hint=hint)
        raise UsageError(f"{url}: no step has tensors on two ranks{first}", hint=hint)
    statistics = StepStatistics(shared)
    replicas = ReplicaCounts(ranks, statistics.axis)
    seen = observe(statistics, ranks, replicas.visit).only_together()
    table = _Kinds(seen, ranks)
    missing = {*range(len(seen.keys))}
    with PairRunner() as runner:
        # The first step that has a tensor stands for all: later ones are held against it by digests.
        while missing:
            left = [*missing]
            has = np.isin(seen.content[:, left], table.absent, invert=True)
            number = int(np.argmax(has.sum(axis=1)))
            opened = shared.of_step(shared.steps[number])
            loaded = {rank: load_step(shared.store, one) for rank, one in opened.items()}
            held = hold_together(loaded, shared.store.coordinates(ranks))
            places = [statistics.axis.place(key) or 0 for key in held.keys]
            table.add(held, places, find_collective_results(held, seen, number, places, runner), missing)
            # Also what the step has and `held` leaves out, such as passes that train nothing.
            missing -= {*places, *np.array(left)[has[number]].tolist()}
            if not has[number].any():
                break
    findings = MistakeSearch(statistics, seen, table.sums).find()
    return RunLayout(
        store=url,
        ranks=ranks,
        steps=tuple(shared.steps),
        kinds=tuple(table.placed()),
        findings=tuple(findings),
        replicas=tuple(replicas.groups()),
        left_out=snapshot.left_out,
        removed=table.removed,
    )


class _Kinds:
    """How each kind of tensor is held: the same operator in all layers and steps."""

    def __init__(self, seen: AgreementOfRanks, ranks: Sequence[int]) -> None:
        self._seen, self._ranks = seen, ranks
        self._rows: dict[tuple[Kind, str], PlacedKind] = {}
        self._counts: Counter[tuple[Kind, str]] = Counter()
        self.sums: dict[Kind, Kind] = {}
        """By kind of partial sums, the kind of what they are summed to."""
        self.removed = 0
        """Tensors, counted in each step, that stay open because their elements were removed."""
        self.absent = [
            pattern for pattern, labels in enumerate(seen.patterns.all) if (labels == ABSENT).all()
        ]

    def add(
        self,
        held: HeldTensors,
        places: Sequence[int],
        whole: Mapping[int, tuple[int, str]],
        wanted: set[int],
    ) -> None:
        """Take in the tensors of a step that are wanted, with what their pieces make up."""
        for number, place in enumerate(places):
            if place not in wanted:
                continue
            if number in whole and whole[number][1] == "partial sum":
                self.sums[kind_of(held.keys[number], 0)] = kind_of(held.keys[whole[number][0]], 0)
            patterns: list[int] = self._seen.content[:, place].tolist()
            for pattern, count in Counter(patterns).items():
                if pattern in self.absent:
                    continue
                step = patterns.index(pattern)
                placement, why = self._known(held, number, step, place, whole)
                self.removed += count * (placement == _OWN and held.is_removed(number))
                key = kind_of(held.keys[number], len(held.shapes(number)[0])), placement
                holders = tuple(
                    self._ranks[own]
                    for own in np.flatnonzero(self._seen.labels(step, place) != ABSENT).tolist()
                )
                self._rows.setdefault(key, PlacedKind(held.keys[number].name, holders, placement, why, 0))
                self._counts[key] += count

    def _known(
        self, held: HeldTensors, number: int, step: int, place: int, whole: Mapping[int, tuple[int, str]]
    ) -> tuple[str, str]:
        seen = self._seen
        if seen.holders(step, place) == 1:
            return "whole", "one rank has it"
        if told := held.told(number):
            return ", ".join(f"{name}: {kind}" for name, kind in told.items()), "told"
        if not seen.is_known(step, place):
            return "?", "bytes are not known: only statistics were dumped"
        return self._by_bytes(held, number, step, place, whole)

    def _by_bytes(
        self, held: HeldTensors, number: int, step: int, place: int, whole: Mapping[int, tuple[int, str]]
    ) -> tuple[str, str]:
        seen = self._seen
        is_late_parameter = step > 0 and seen.kinds[place] == SlotKind.PARAMETER
        if is_late_parameter and seen.splits(step - 1, place, place, later=1):
            return "no longer replicated", "equal bytes in the step before: see `divergence`"
        if seen.is_distinct(step, place):
            return self._apart(held, number, whole)
        if seen.is_replicated(step, place):
            return "replicated", "equal bytes"
        labels = seen.labels(step, place)
        groups = [
            format_ranges(self._ranks[own] for own in np.flatnonzero(labels == label).tolist())
            for label in np.unique(labels[labels >= 0]).tolist()
            if (labels == label).sum() > 1
        ]
        return f"replicated in {'; '.join(groups)}", "equal bytes"

    @staticmethod
    def _apart(held: HeldTensors, number: int, whole: Mapping[int, tuple[int, str]]) -> tuple[str, str]:
        if number in whole:
            other, placement = whole[number]
            estimated = ", by marginals: estimated" if is_removed(held, (number, other)) else ""
            return placement, f"makes up {held.keys[other].name}{estimated}"
        removed = "; its elements were removed" if held.is_removed(number) else ""
        return _OWN, f"bytes differ{removed}"

    def placed(self) -> list[PlacedKind]:
        """Return each kind with the number of its tensors."""
        return [
            PlacedKind(row.name, row.ranks, row.placement, row.why, self._counts[key])
            for key, row in self._rows.items()
        ]


_OWN = "each rank its own"


QUESTION = Question(
    layout,
    ("layout run.zarr", "layout run.zarr --step 3 --mesh dp=2,tp=4"),
    limit=40,
    noun="row",
    takes_mesh=True,
)
