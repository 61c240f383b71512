"""Compares runs whose ranks hold the tensors in different ways: step by step, over all ranks at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ingest.questions.compare.held_tensors import hold_together
from ingest.questions.compare.kept_tensors import MAX_KEPT
from ingest.questions.compare.layout_comparison import LayoutComparison, LayoutState
from ingest.questions.compare.local_numbers import LocalNumbers
from ingest.questions.compare.result import (
    ComparedStep,
    ComparedTensor,
    Comparison,
    FirstDifference,
    NameCounts,
    Verdict,
)
from ingest.questions.compare.runner import PairRunner
from ingest.questions.compare.sources import Source, StepTensors
from ingest.questions.compare.step_comparison import Choices
from ingest.questions.compare.step_pairing import SideSteps
from ingest.questions.placement.decide import Certainty
from ingest.questions.placement.layout_map import LayoutMap
from ingest.reader.ranges import format_ranges
from ingest.reader.snapshot import LeftOut
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey


def are_cut_differently(a: SideSteps, b: SideSteps, wanted: bool | None) -> bool:  # noqa: FBT001  (a choice of the user)
    """Return whether tensors have to be put together before they are compared.

    That is so if the user wants it; or, without a rank named, if one side has several times as many ranks.
    """
    if wanted is not None:
        return wanted
    few, many = sorted((len(a.ranks), len(b.ranks)))
    named = a.selection.rank is not None or b.selection.rank is not None
    return not named and 0 < few < many and many % few == 0


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
        `workers.tasks.placed.compare_placed` takes; and 100 MB for the tensors that the result lists.

        Raises:
            UsageError: the sides have no step or tensor in common.
            DumpIngestError: a store or a dump could not be read.
        """
        for source in (self.a, self.b):
            if source.sample:
                raise UsageError(
                    f"{source.label}: tensors of which only both ends were dumped cannot be put together",
                    hint="Dump whole tensors, or compare rank by rank: --rank-by-rank.",
                )
        pairs = _paired_steps(steps_a, steps_b)
        state = LayoutState(self.layout_map)
        numbers = LocalNumbers()
        steps: list[ComparedStep] = []
        tensors: list[ComparedTensor] = []
        left_out = [*(("A", left) for left in self.a.left_out), *(("B", left) for left in self.b.left_out)]
        first: FirstDifference | None = None
        layout: Counter[tuple[str, str]] = Counter()
        names: tuple[set[str], set[str]] = (set(), set())
        guessed: Counter[str] = Counter()
        matched = 0
        for step_a, step_b in pairs:
            ranks_a = self._load(self.a, steps_a, step_a, "A", left_out)
            ranks_b = self._load(self.b, steps_b, step_b, "B", left_out)
            if not ranks_a or not ranks_b:
                continue
            b = hold_together(step_b, ranks_b, self.b.coordinates())
            numbers.learn(ranks_a, b)
            a = hold_together(step_a, numbers.apply(ranks_a), self.a.coordinates())
            comparison = LayoutComparison(a, b, self.choices, state)
            rows = comparison.compare(runner)
            matched += comparison.matched
            layout.update(comparison.layout)
            guessed.update(row.matched for row in rows if row.guessed)
            for known, side in zip(names, (a, b), strict=True):
                known.update(key.name for key in side.keys)
            keys = StepKey(min(a.ranks), step_a), StepKey(min(b.ranks), step_b)
            steps.append(ComparedStep(*keys, dict(comparison.counts)))
            first = first or comparison.first(rows)
            tensors += [row for row in rows if self.choices.keep_equal or row.verdict is not Verdict.EQUAL]
            if len(tensors) > 2 * MAX_KEPT:
                tensors = sorted(tensors, key=lambda row: row.badness)[:MAX_KEPT]
        self._check(steps, matched, left_out)
        compared_a, compared_b = {a for a, _ in pairs}, {b for _, b in pairs}
        return Comparison(
            a=self.a.label,
            b=self.b.label,
            steps=tuple(steps),
            tensors=tuple(tensors),
            first=first,
            left_out=tuple(left_out),
            only_a=_missing(steps_a, compared_a, steps_b),
            only_b=_missing(steps_b, compared_b, steps_a),
            notes=(*self._notes(steps_a, steps_b, layout, guessed), *numbers.notes),
            unmatched_matter=unmatched_matter,
            damaged=sum(row.damaged for row in tensors),
            names=NameCounts.of(*names),
            guessed=dict(guessed),
            layout=dict(layout),
        )

    def _load(
        self, source: Source, steps: SideSteps, step: int, side: str, left_out: list[tuple[str, LeftOut]]
    ) -> dict[int, StepTensors]:
        """Return one step of all ranks; nothing if one of them is damaged or partial."""
        ranks: dict[int, StepTensors] = {}
        problems = []
        for key in (key for key in steps.keys if key.step == step):
            try:
                loaded = source.load(key)
            except DamagedStore as exc:
                problems.append(LeftOut.damaged(key, exc.message))
                continue
            if loaded.partial and not self.choices.include_partial:
                problems.append(LeftOut(key, loaded.partial))
            ranks[key.rank] = loaded
        left_out += [(side, problem) for problem in problems]
        return {} if problems else ranks

    def _notes(
        self,
        steps_a: SideSteps,
        steps_b: SideSteps,
        layout: Counter[tuple[str, str]],
        guessed: Counter[str],
    ) -> list[str]:
        ranks = format_ranges(steps_a.ranks), format_ranges(steps_b.ranks)
        notes = [
            f"tensors were put together from ranks {ranks[0]} of A and {ranks[1]} of B (see --rank-by-rank)"
        ]
        open_ones = sum(count for (_, certainty), count in layout.items() if certainty == Certainty.OPEN)
        if open_ones:
            notes.append(
                f"how ranks hold {open_ones} tensors is open (`certainty`); --layout-map FILE settles it"
            )
        if guessed:
            notes.append(f"{guessed.total()} tensors were paired by their values, because their names differ")
        return notes

    def _check(self, steps: list[ComparedStep], matched: int, left_out: list[tuple[str, LeftOut]]) -> None:
        a, b = self.a.label, self.b.label
        damaged = [step for _, step in left_out if step.is_damaged]
        if not steps and damaged:
            raise DamagedStore(f"no step of {a} and {b} can be compared ({damaged[0]})")
        if not steps:
            raise UsageError(
                f"{a} and {b} have no step that all ranks have completely"
                + (f" ({left_out[0][1]})" if left_out else ""),
                hint="--include-partial compares steps that are not complete, too.",
            )
        if not matched:
            raise UsageError(
                f"no tensor of {a} has a counterpart in {b}",
                hint="If names differ, --map FILE says which is which.",
            )


def _paired_steps(a: SideSteps, b: SideSteps) -> list[tuple[int, int]]:
    """Return the steps of A and B that are compared with each other.

    Raises:
        UsageError: they have none in common.
    """
    of_a, of_b = ({key.step for key in side.keys if key.step is not None} for side in (a, b))
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


def _missing(side: SideSteps, compared: set[int], other: SideSteps) -> tuple[StepKey, ...]:
    """Return the steps of a side that the other one lacks, once for each; none if a step was named there."""
    if other.selection.step is not None:
        return ()
    lacking = sorted({key.step for key in side.keys if key.step is not None} - compared)
    return tuple(StepKey(min(side.ranks), step) for step in lacking)
