"""What ranks hold and should not: identities of stored values that fail, or that hold where they must not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ingest.questions.placement.agree import MANY, Kind
from ingest.questions.placement.layout_answer import LayoutFinding
from ingest.questions.placement.searched_run import Mistake, SearchedRun
from ingest.questions.placement.slot_kinds import SlotKind
from ingest.questions.placement.states import OUT_OF_STEP
from ingest.questions.placement.step_of_sums import StepOfSums


class MistakeSearch(SearchedRun):
    """Looks at the steps of a run, in order."""

    def find(self) -> list[LayoutFinding]:
        """Return one finding for each cause, where it is first in order of step and execution."""
        found: dict[str, LayoutFinding] = {}
        has_drifted = False
        for number, step in enumerate(self.snapshot.steps):
            has_drifted = has_drifted or self._drifts(number)
            # What follows from parameters that drifted apart is for `divergence`.
            unlike = [] if has_drifted else self._unlike(number)
            unshared = {} if has_drifted else self._unshared(number, unlike)
            mistakes = sorted(self._of_step(number, unlike, unshared), key=lambda mistake: mistake.order)
            more = len({*unlike, *unshared} - {mistake.tensor for mistake in mistakes})
            for mistake in mistakes:
                name = self.seen.keys[mistake.tensor].name
                if (known := found.get(mistake.kind)) is None:
                    found[mistake.kind] = LayoutFinding(
                        step, mistake.ranks, name, mistake.kind, mistake.text, mistake.level, more
                    )
                    more = 0
                else:
                    found[mistake.kind] = replace(known, follows=known.follows + 1)
        return list(found.values())

    def _of_step(self, number: int, unlike: Sequence[int], unshared: Mapping[int, int]) -> Iterator[Mistake]:
        states = [*self._states.out_of_step(self.seen, self.statistics, number)]
        # A program that adds a bias on every rank does so in every step.
        has_budget = self.left > 0 and (self._thorough or not number)
        if not any((unlike, unshared, states, has_budget, number in self.asked, self.shares_batch(number))):
            return
        step = StepOfSums(self, number, unlike, unshared)
        yield from (
            step.mistake(state.tensor, state.ranks, OUT_OF_STEP, "shown", state.text) for state in states
        )
        yield from step.mistakes()

    def _drifts(self, number: int) -> bool:
        """Return whether ranks that held the same parameter one step before do not any more."""
        parameters = np.flatnonzero(self.seen.kinds == SlotKind.PARAMETER).tolist() if number else []
        return any(self.seen.splits(number - 1, place, place, later=1) for place in parameters)

    def _unlike(self, number: int) -> list[int]:
        """Return the tensors that differ from rank to rank where one expects that they do not.

        That is, most of their kind do not, or the first of their kind, or the same one in the step before.
        """
        seen = self.seen
        unlike = []
        for members in self._held_by_several(number).values():
            other = [tensor for tensor in members if not seen.is_replicated(number, tensor)]
            is_odd = self.is_mostly_shared(len(members), len(other)) or other[:1] != members[:1]
            unlike += [
                tensor for tensor in other if is_odd or (number and seen.is_replicated(number - 1, tensor))
            ]
        return unlike

    def _held_by_several(self, number: int) -> dict[Kind, list[int]]:
        """Return by kind the tensors that several ranks hold in a step, but outputs of optimizers."""
        seen = self.seen
        kinds: dict[Kind, list[int]] = {}
        judged = seen.tells[number] & (seen.kinds != SlotKind.OPTIMIZER_OUTPUT)
        for tensor in np.flatnonzero(judged).tolist():
            if seen.holders(number, tensor) > 1:
                kinds.setdefault(self.kinds[tensor], []).append(tensor)
        return kinds

    def _unshared(self, number: int, odd: Collection[int]) -> dict[int, int]:
        """Return gradients that differ on ranks with the same parameter, if that differs afterwards.

        By gradient, its parameter. Where no later step tells what the update did, most others must be the
        same. Parts of a whole may begin with the same constant: then others of the kind must be the same.
        """
        seen = self.seen
        shared = [
            (gradient, parameter)
            for gradient, parameter in self._gradients
            if seen.holders(number, gradient) > 1 and (seen.tells[number, parameter] or gradient in odd)
        ]
        unlike = {gradient: own for gradient, own in shared if seen.splits(number, gradient, own)}
        # What differed in the step before, and led to nothing, was dumped before it was reduced.
        unshared = {
            gradient: own
            for gradient, own in unlike.items()
            if not number or not seen.splits(number - 1, gradient, own)
        }
        if number + 1 < len(seen.content):
            applied = {gradient for gradient, own in unlike.items() if seen.splits(number, own, own, later=1)}
            # So was what leads to nothing in this step, and likely all of them.
            are_applied = 2 * len(applied) > len(unlike)
            return {
                gradient: own for gradient, own in unshared.items() if are_applied and gradient in applied
            }
        return unshared if len(shared) - len(unshared) >= MANY * len(unshared) else {}
