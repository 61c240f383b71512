"""What looks like a mistake in how ranks hold tensors, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingest.questions.compare.held_tensors import HeldTensors, hold_together
from ingest.questions.compare.runner import ThreadRunner
from ingest.questions.compare.stored_steps import load_step
from ingest.questions.placement.collective_results import find_collective_results
from ingest.questions.placement.equal_holders import EqualHolders, equal_holders
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.questions.placement.misplaced import find_misplaced, gradients_of
from ingest.questions.placement.optimizer_states import OptimizerStates
from ingest.questions.placement.repeated_bias import find_repeated_biases
from ingest.reader.snapshot import Snapshot


class MistakeSearch:
    """Looks at one step after the other."""

    def __init__(self) -> None:
        self._states = OptimizerStates()

    def find(
        self, held: HeldTensors, holders_of: Mapping[int, EqualHolders], whole: Mapping[int, tuple[int, str]]
    ) -> list[LayoutFinding]:
        """Find probable mistakes in a step, in order of execution.

        Args:
            held: the tensors of the step.
            holders_of: by tensor, which ranks hold the same bytes.
            whole: by tensor, which tensor of all ranks its pieces make up, and how.
        """
        states = self._states.find(held, holders_of)
        explained = {finding.name for finding in states}  # not also as a reduction that is missing
        misplaced = find_misplaced(held, holders_of, whole)
        findings = [
            *(finding for finding in misplaced if finding.name not in explained),
            *find_repeated_biases(held, holders_of),
            *states,
        ]
        places = {key.name: place for place, key in reversed([*enumerate(held.keys)])}
        return sorted(findings, key=lambda finding: places[finding.name])


def find_mistakes(snapshot: Snapshot, steps: Sequence[int]) -> list[LayoutFinding]:
    """Find probable mistakes in some steps, by step and in order of execution.

    Elements are read of gradients that differ, and of partial sums; see `layout`.

    Raises:
        DamagedStore: the index of a step is damaged.
    """
    search = MistakeSearch()
    coordinates = snapshot.store.coordinates(snapshot.ranks)
    findings: list[LayoutFinding] = []
    with ThreadRunner() as runner:
        for step in steps:
            loaded = {
                rank: load_step(snapshot.store, opened) for rank, opened in snapshot.of_step(step).items()
            }
            if len(loaded) < 2:
                continue
            held = hold_together(step, loaded, coordinates)
            holders_of = equal_holders(held)
            gradients = gradients_of(held, holders_of)
            asked = gradients.differing if gradients.are_suspect else ()
            findings += search.find(
                held, holders_of, find_collective_results(held, holders_of, runner, asked)
            )
    return findings
