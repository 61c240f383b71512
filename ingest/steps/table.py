"""The table of all steps of a dump: the one collection by key, and the only place that drops a step."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ingest.layouts.base import Listing
from ingest.steps.state import StepState
from workers.model import StepKey


class StepTable:
    """One record for each rank and step that a dump has. Bounded by the dump, and the steps under way.

    Written by one thread. Other threads may iterate over it meanwhile: they see the records of one moment.
    """

    def __init__(self) -> None:
        """Begin without steps."""
        self._states: dict[StepKey, StepState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[StepState]:
        """Iterate over a copy: listing the values of a dictionary is one operation for other threads."""
        return iter(list(self._states.values()))

    def __getitem__(self, key: StepKey) -> StepState:
        return self._states[key]

    def get(self, key: StepKey) -> StepState | None:
        """Return the record of a step, None if the dump does not have it."""
        return self._states.get(key)

    def ensure(self, key: StepKey) -> StepState:
        """Return the record of a step, a new one if it has none."""
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = StepState(key)
        return state

    def follow(self, keys: Collection[StepKey]) -> list[StepState]:
        """Have a record for each of these steps, and drop all others; return those that were dropped."""
        present = keys if isinstance(keys, set | frozenset) else set(keys)
        dropped = self.forget(present)
        if len(self._states) < len(present):
            for key in sorted(present - self._states.keys(), key=lambda key: key.order):
                self._states[key] = StepState(key)
        return dropped

    def forget(self, present: Collection[StepKey]) -> list[StepState]:
        """Drop the steps that are not `present` any more; return what was known of them.

        A step for which tasks or a deletion are still under way keeps its record until they have ended, so
        that it is not offered twice if it comes back. Everything else that was known of it is dropped.
        """
        gone = [state for key, state in self._states.items() if key not in present]
        for state in gone:
            state.lose_files()
            state.lose_commit()
            if state.work is None and not state.is_removing:
                del self._states[state.key]
        return gone

    # -- queries

    def reusable_listings(self) -> dict[StepKey, Listing]:
        """Return the listings that the next scan may use again where no directory has changed."""
        return {
            key: state.listing
            for key, state in self._states.items()
            if state.is_listing_reusable and state.listing is not None
        }

    def unexpected(self) -> list[StepState]:
        """Return the steps that are new to `Committed`."""
        return [state for state in self._states.values() if not state.is_expected]

    def unchecked(self) -> list[StepState]:
        """Return the steps of which the store has something and is still to be asked what."""
        return [state for state in self._states.values() if state.is_unchecked]

    def present(self) -> list[StepState]:
        """Return the steps that the last scan listed."""
        return [state for state in self._states.values() if state.listing is not None]

    def pending(self) -> list[StepState]:
        """Return the steps that the store did not have as the last scan saw them, complete or not."""
        return [state for state in self._states.values() if state.is_pending]

    def left(self) -> list[StepState]:
        """Return the steps of which the store does not have all that can be taken; no run files."""
        return [state for state in self if state.key.step is not None and state.is_left]

    def held(self) -> list[StepState]:
        """Return the steps that the store had as the last scan saw them."""
        return [state for state in self._states.values() if state.held is not None]

    def denied(self) -> list[StepState]:
        """Return the steps that wait until somebody has granted a permission or named a rank."""
        return [state for state in self._states.values() if state.denied]

    def committed(self) -> list[StepState]:
        """Return the steps of which a generation is committed, as far as is known."""
        return [state for state in self._states.values() if state.committed is not None]
