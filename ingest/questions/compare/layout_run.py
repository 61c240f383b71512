"""Compares runs whose ranks hold the tensors in different ways: step by step, over all ranks at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingest.questions.compare.builder import ComparisonBuilder
from ingest.questions.compare.held_tensors import (
    are_cut_into_other_calls,
    calls_of,
    hold_together,
    with_tied_weights,
)
from ingest.questions.compare.layout_comparison import LayoutComparison, LayoutState
from ingest.questions.compare.local_numbers import LocalNumbers
from ingest.questions.compare.result import Comparison
from ingest.questions.compare.runner import PairRunner
from ingest.questions.compare.sources import Source
from ingest.questions.compare.step_comparison import Choices
from ingest.questions.compare.step_pairing import SideSteps, StepPairing
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
from workers.store.consolidated.blocks import TensorKey

_MISSING = "missing, though other ranks have this step"


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
        first, second = (_parameter_shapes(source.load(key)) for source in sources)
    except DamagedStore:
        return False
    return any(second.get(own, shape) != shape for own, shape in first.items())


def _parameter_shapes(side: StepTensors) -> dict[TensorKey, tuple[int, ...]]:
    shapes = zip(side.keys, side.shapes, strict=True)
    return {own: shape for own, shape in shapes if is_parameter(own.op_type)}


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
        builder = ComparisonBuilder(self.choices)
        other_calls, unreduced = 0, list[str]()
        for step_a, step_b in pairs:
            ranks_a = self._load(self.a, steps_a, step_a, "A", builder.left_out)
            ranks_b = self._load(self.b, steps_b, step_b, "B", builder.left_out)
            if not ranks_a or not ranks_b:
                builder.incomplete += bool(ranks_a or ranks_b)
                continue
            for batch, own_a, own_b in _by_batch((ranks_a, ranks_b), places):
                calls_a, calls_b = calls_of(own_a.values()), calls_of(own_b.values())
                has_other_calls = are_cut_into_other_calls(own_a, own_b)
                other_calls += has_other_calls
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
                keys = StepKey(min(a.ranks), step_a), StepKey(min(b.ranks), step_b)
                names = [{key.name for key in side.keys} for side in (a, b)]
                builder.take(comparison, keys, names, rows)
                builder.layout.update(comparison.layout)
                builder.first = builder.first or comparison.first(rows)
                unreduced = unreduced or comparison.unreduced
        only_a = _missing(steps_a, {a for a, _ in pairs}, steps_b)
        only_b = _missing(steps_b, {b for _, b in pairs}, steps_a)
        return builder.finish(
            self.a,
            self.b,
            StepPairing((), only_a, only_b),
            unmatched_matter=unmatched_matter,
            notes=[*_notes(steps_a, steps_b, builder, other_calls, unreduced), *numbers.notes],
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


def _missing(side: SideSteps, compared: set[int], other: SideSteps) -> tuple[StepKey, ...]:
    """Return the steps that the other side lacks, once for each; none if a step was named there."""
    if other.selection.step is not None:
        return ()
    lacking = sorted({key.step for key in side.keys if key.step is not None} - compared)
    return tuple(StepKey(min(side.ranks), step) for step in lacking)


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


def _notes(
    steps_a: SideSteps,
    steps_b: SideSteps,
    builder: ComparisonBuilder,
    other_calls: int,
    unreduced: Sequence[str],
) -> list[str]:
    """Return what there is to say of how tensors were put together.

    Args:
        steps_a: of A.
        steps_b: of B.
        builder: what was compared.
        other_calls: steps whose calls hold other samples on both sides.
        unreduced: gradients of which ranks of A hold parts in the first such step.
    """
    a, b = (named_ranges("rank", steps.ranks) for steps in (steps_a, steps_b))
    notes = [f"tensors were put together from {a} of A and {b} of B (see --rank-by-rank)"]
    undecided = sum(count for (_, certainty), count in builder.layout.items() if certainty == Certainty.OPEN)
    if undecided:
        notes.append(
            f"how ranks hold {counted(undecided, 'tensor')} is open (`certainty`); "
            "--layout-map FILE settles it"
        )
    if other_calls:
        notes.append(
            f"in {counted(other_calls, 'step')}, calls of A and B hold other samples of one batch: "
            "of these steps, only parameters are compared"
        )
    if unreduced:
        notes.append(
            f"each rank of A holds its part of {', '.join(unreduced[:3])}"
            f"{' and others' * (len(unreduced) > 3)}; the gradients of other parameters are whole. "
            "Whether they were reduced before the update, the parameters of the next step show"
        )
    if builder.guessed:
        notes.append(f"paired by values, because names differ: {counted(builder.guessed.total(), 'tensor')}")
    return notes


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
