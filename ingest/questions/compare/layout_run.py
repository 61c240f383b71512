"""Compares runs whose ranks hold the tensors in different ways: step by step, over all ranks at once."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ingest.questions.compare.compared_tensor import ComparedTensor, Verdict
from ingest.questions.compare.held_tensors import (
    HeldTensors,
    are_cut_into_other_calls,
    calls_of,
    hold_together,
    with_tied_weights,
)
from ingest.questions.compare.layout_comparison import LayoutComparison, LayoutState
from ingest.questions.compare.listed_tensors import ListedTensors
from ingest.questions.compare.local_numbers import LocalNumbers
from ingest.questions.compare.result import ComparedStep, Comparison, FirstDifference, NameCounts
from ingest.questions.compare.runner import PairRunner
from ingest.questions.compare.sources import Source, steps_run
from ingest.questions.compare.step_comparison import Choices
from ingest.questions.compare.step_pairing import SideSteps
from ingest.questions.compare.step_tensors import StepTensors
from ingest.questions.placement.decide import Certainty
from ingest.questions.placement.layout_map import LayoutMap
from ingest.reader.flow.operator_kinds import is_parameter
from ingest.reader.parallel.mesh import REPLICATED, Coordinates
from ingest.reader.ranges import named_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import counted
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey

_MISSING = "missing, though other ranks have this step"
#: What FSDP1 calls the parameters of a unit, joined and cut, without `use_orig_params`.
_FLAT = re.compile(r"(?:^|[._/])_?flat_param(?:[._/]|$)")


def are_cut_differently(
    sources: tuple[Source, Source] | None, a: SideSteps, b: SideSteps, *, wanted: bool | None
) -> bool:
    """Return whether tensors have to be put together before they are compared.

    That is so if the user wants it; or, without a rank named, if one side has several times as many ranks, or
    parameters of other shapes in `sources`, if that is to be looked for.
    """
    if wanted is not None:
        return wanted
    few, many = sorted((len(a.ranks), len(b.ranks)))
    if a.selection.rank is not None or b.selection.rank is not None or not few:
        return False
    if few < many:
        return many % few == 0
    return sources is not None and many > 1 and _have_other_shards(sources, a, b)


def _have_other_shards(sources: tuple[Source, Source], a: SideSteps, b: SideSteps) -> bool:
    """Return whether a rank has parameters of other shapes on both sides, in the first step of both."""
    key = next((key for key in a.keys if key in set(b.keys)), None)
    if key is None or any(source.sample for source in sources):
        return False
    try:
        shapes = [
            {
                own: shape
                for own, shape in zip(side.keys, side.shapes, strict=True)
                if is_parameter(own.op_type)
            }
            for side in (source.load(key) for source in sources)
        ]
    except DamagedStore:
        return False
    return any(shapes[1].get(own, shape) != shape for own, shape in shapes[0].items())


@dataclass(slots=True)
class _Outcome:
    """What the steps compared so far came to."""

    kept: ListedTensors
    steps: list[ComparedStep] = field(default_factory=list)
    first: FirstDifference | None = None
    layout: Counter[tuple[str, str]] = field(default_factory=Counter)
    names: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    """The names of tensors in A and in B."""
    guessed: Counter[str] = field(default_factory=Counter)
    """How many pairs were guessed, by how."""
    matched: int = 0
    incomplete: int = 0
    """Steps that are complete on one side alone."""
    other_calls: int = 0
    """Steps whose calls hold other samples on both sides."""
    unreduced: list[str] = field(default_factory=list)
    """Gradients of which ranks of A hold parts in the first such step."""

    def add(
        self, a: HeldTensors, b: HeldTensors, comparison: LayoutComparison, rows: list[ComparedTensor]
    ) -> None:
        """Add a step of both sides, whose tensors have been compared."""
        self.matched += comparison.matched
        self.layout.update(comparison.layout)
        self.guessed.update(row.matched for row in rows if row.guessed)
        for known, side in zip(self.names, (a, b), strict=True):
            known.update(key.name for key in side.keys)
        keys = StepKey(min(a.ranks), a.step), StepKey(min(b.ranks), b.step)
        self.steps.append(ComparedStep(*keys, dict(comparison.counts)))
        self.first = self.first or comparison.first(rows)
        self.unreduced = self.unreduced or comparison.unreduced
        self.kept.add(rows)


@dataclass(slots=True)
class LayoutRun:
    """Two sides, and what the user asked for."""

    a: Source
    b: Source
    choices: Choices
    layout_map: LayoutMap

    def compare(
        self, steps_a: SideSteps, steps_b: SideSteps, runner: PairRunner, *, unmatched_matter: bool
    ) -> Comparison:
        """Compare all steps that both sides have.

        Memory: the indexes of one step of all ranks; in each thread or task, what
        `compare_placements.compare_placed` takes; and 100 MB for the tensors that the result lists.

        Raises:
            UsageError: the sides have no step or tensor in common.
            DumpIngestError: a store or a dump could not be read.
        """
        for source in (self.a, self.b):
            _refuse_ends(source)
        pairs = _paired_steps(steps_a, steps_b)
        states: defaultdict[object, LayoutState] = defaultdict(lambda: LayoutState(self.layout_map))
        places = self.a.coordinates(), self.b.coordinates()
        numbers = LocalNumbers()
        left_out = [*(("A", left) for left in self.a.left_out), *(("B", left) for left in self.b.left_out)]
        outcome = _Outcome(ListedTensors(self.choices.keep_equal))
        for step_a, step_b in pairs:
            ranks_a = self._load(self.a, steps_a, step_a, "A", left_out)
            ranks_b = self._load(self.b, steps_b, step_b, "B", left_out)
            if not ranks_a or not ranks_b:
                outcome.incomplete += bool(ranks_a or ranks_b)
                continue
            for batch, own_a, own_b in _by_batch((ranks_a, ranks_b), places):
                calls_a, calls_b = calls_of(own_a.values()), calls_of(own_b.values())
                has_other_calls = are_cut_into_other_calls(own_a, own_b)
                outcome.other_calls += has_other_calls
                renamed = with_tied_weights(own_b, own_a)
                b = hold_together(step_b, renamed, places[1], calls_a, without_activations=has_other_calls)
                numbers.learn(own_a, b)
                renamed = with_tied_weights(numbers.apply(own_a), own_b)
                a = hold_together(step_a, renamed, places[0], calls_b, without_activations=has_other_calls)
                comparison = LayoutComparison(
                    a,
                    b,
                    self.choices,
                    states[batch],
                    is_last=(step_a, step_b) == pairs[-1],
                    has_other_calls=has_other_calls,
                )
                rows = comparison.compare(runner)
                outcome.add(a, b, comparison, rows)
        self._check(outcome, left_out)
        tensors = outcome.kept.listed()
        compared_a, compared_b = {a for a, _ in pairs}, {b for _, b in pairs}
        return Comparison(
            a=self.a.label,
            b=self.b.label,
            steps=tuple(outcome.steps),
            tensors=tensors,
            first=outcome.first,
            left_out=tuple(left_out),
            only_a=self._missing(self.a, steps_a, compared_a, steps_b),
            only_b=self._missing(self.b, steps_b, compared_b, steps_a),
            incomplete=outcome.incomplete,
            notes=(
                *_notes(steps_a, steps_b, outcome),
                *_flat_parameters(tensors),
                *numbers.notes,
                *outcome.kept.notes,
            ),
            unmatched_matter=unmatched_matter,
            damaged=outcome.kept.damaged,
            names=NameCounts.of(*outcome.names),
            guessed=dict(outcome.guessed),
            limits=self.choices.limits,
            layout=dict(outcome.layout),
        )

    def _load(
        self, source: Source, steps: SideSteps, step: int, side: str, left_out: list[tuple[str, LeftOut]]
    ) -> dict[int, StepTensors]:
        """Return one step of all ranks; nothing if it is damaged, partial or missing on one of them."""
        if any(key.step == step for key in steps.left_out):
            return {}  # what is missing of it was named when the side was opened
        there = set(steps.keys)
        keys = [StepKey(rank, step) for rank in steps.ranks]
        if self.choices.include_partial:
            keys = [key for key in keys if key in there]
        loaded = [self._loaded(source, key) if key in there else LeftOut(key, _MISSING) for key in keys]
        problems = [problem for problem in loaded if isinstance(problem, LeftOut)]
        left_out += [(side, problem) for problem in problems]
        if problems:
            return {}
        return {tensors.key.rank: tensors for tensors in loaded if not isinstance(tensors, LeftOut)}

    def _loaded(self, source: Source, key: StepKey) -> StepTensors | LeftOut:
        try:
            loaded = source.load(key)
        except DamagedStore as exc:
            return LeftOut.damaged(key, exc.message)
        if loaded.partial and not self.choices.include_partial:
            return LeftOut(key, loaded.partial)
        return loaded

    def _missing(
        self, source: Source, side: SideSteps, compared: set[int], other: SideSteps
    ) -> tuple[StepKey, ...]:
        """Return the steps that the other side lacks, once for each; none if a step was named there."""
        if other.selection.step is not None:
            return ()
        lacking = sorted({key.step for key in side.keys if key.step is not None} - compared)
        return steps_run(source, (StepKey(min(side.ranks), step) for step in lacking))

    def _check(self, outcome: _Outcome, left_out: list[tuple[str, LeftOut]]) -> None:
        a, b = self.a.label, self.b.label
        damaged = [step for _, step in left_out if step.is_damaged]
        if not outcome.steps and damaged:
            raise DamagedStore(f"no step of {a} and {b} can be compared ({damaged[0]})")
        if not outcome.steps:
            raise UsageError(
                f"{a} and {b} have no step that all ranks have completely"
                + (f" ({left_out[0][1]})" if left_out else ""),
                hint="--include-partial compares steps that are not complete, too.",
            )
        if not outcome.matched:
            raise UsageError(
                f"no tensor of {a} has a counterpart in {b}",
                hint="If names differ, --map FILE says which is which.",
            )


def _by_batch(
    ranks: tuple[Mapping[int, StepTensors], Mapping[int, StepTensors]],
    places: tuple[Mapping[int, Coordinates], Mapping[int, Coordinates]],
) -> list[tuple[object, Mapping[int, StepTensors], Mapping[int, StepTensors]]]:
    """Return the ranks of A and of B that read the same batch, for each batch; all if that is not known.

    They have the same places on the axes of data parallelism that both sides have, with as many places.
    """
    axes = [axis for axis in sorted(REPLICATED) if _is_cut_alike(axis, ranks, places)]
    batches: dict[object, tuple[dict[int, StepTensors], dict[int, StepTensors]]] = {}
    for number, (side, of_side) in enumerate(zip(ranks, places, strict=True)):
        for rank, tensors in side.items():
            batch = tuple(of_side[rank][axis].rank for axis in axes)
            batches.setdefault(batch, ({}, {}))[number][rank] = tensors
    return [(batch, *sides) for batch, sides in batches.items()]


def _is_cut_alike(
    axis: str,
    ranks: tuple[Mapping[int, StepTensors], Mapping[int, StepTensors]],
    places: tuple[Mapping[int, Coordinates], Mapping[int, Coordinates]],
) -> bool:
    """Return whether both sides are known to have the same places, and several, on an axis."""
    found: list[set[int | None]] = []
    for side, of_side in zip(ranks, places, strict=True):
        on_axis = (of_side.get(rank, {}).get(axis) for rank in side)
        found.append({None if place is None else place.rank for place in on_axis})
    return found[0] == found[1] and len(found[0]) > 1 and None not in found[0]


def _refuse_ends(source: Source) -> None:
    """Refuse a side that has no whole tensors.

    Raises:
        UsageError: its dump system wrote only the first and the last elements of each tensor.
    """
    if source.sample:
        raise UsageError(
            f"{source.label}: tensors of which only both ends were dumped cannot be put together",
            hint="Dump whole tensors, or compare rank by rank: --rank-by-rank.",
        )


def _notes(steps_a: SideSteps, steps_b: SideSteps, outcome: _Outcome) -> list[str]:
    a, b = (named_ranges("rank", steps.ranks) for steps in (steps_a, steps_b))
    notes = [f"tensors were put together from {a} of A and {b} of B (see --rank-by-rank)"]
    undecided = sum(count for (_, certainty), count in outcome.layout.items() if certainty == Certainty.OPEN)
    if undecided:
        notes.append(
            f"how ranks hold {counted(undecided, 'tensor')} is open (`certainty`); "
            "--layout-map FILE settles it"
        )
    if outcome.other_calls:
        notes.append(
            f"in {counted(outcome.other_calls, 'step')}, calls of A and B hold other samples of one batch: "
            "of these steps, only parameters are compared"
        )
    if outcome.unreduced:
        notes.append(
            f"each rank of A holds its part of {', '.join(outcome.unreduced[:3])}"
            f"{' and others' * (len(outcome.unreduced) > 3)}; the gradients of other parameters are whole. "
            "Whether they were reduced before the update, the parameters of the next step show"
        )
    if outcome.guessed:
        notes.append(f"paired by values, because names differ: {counted(outcome.guessed.total(), 'tensor')}")
    return notes


def _flat_parameters(tensors: Sequence[ComparedTensor]) -> Iterator[str]:
    """Yield why flat parameters are not compared, for each side that has some."""
    for side, verdict in (("A", Verdict.ONLY_A), ("B", Verdict.ONLY_B)):
        own = {row.name for row in tensors if row.verdict is verdict and _FLAT.search(row.name)}
        if own:
            yield (
                f"{counted(len(own), 'tensor')} of {side} not compared: flat parameters of FSDP1 and their "
                "gradients join all parameters of a unit; with use_orig_params=True, the parameters "
                "themselves are dumped"
            )


def _paired_steps(a: SideSteps, b: SideSteps) -> list[tuple[int, int]]:
    """Return the steps of A and B that are compared with each other.

    Raises:
        UsageError: they have none in common.
    """
    of_a, of_b = (
        {key.step for key in (*side.keys, *side.left_out) if key.step is not None} for side in (a, b)
    )
    named = a.selection.step, b.selection.step
    if named[0] is not None and named[1] is not None:
        pairs = [(named[0], named[1])]
    else:
        pairs = [(step, step) for step in sorted(of_a & of_b)]
    if not pairs:
        raise UsageError(
            f"{a.label} and {b.label} have no step in common",
            hint=f"A has {a}, B has {b}. Name what to compare: STORE@step=STEP.",
        )
    return pairs
