"""A check for damage when a service starts: lists the objects of the steps that the store already has."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from ingest.reader.damage import Damage
from ingest.reader.verifying.verify_listing import ExpectedObjects, damage_in_listing
from ingest.steps.events import StepDamaged
from ingest.steps.state import StepTable
from workers.errors import StoreError
from workers.model import StepKey
from workers.store.objects import ObjectStore


@dataclass(slots=True)
class StartupCheck:
    """Lists, once and in a thread of its own, the steps that were committed before the service began."""

    objects: ObjectStore
    _thread: threading.Thread | None = None
    _damages: list[Damage] = field(default_factory=list)

    def poll(self, table: StepTable) -> list[StepDamaged]:
        """Start the check on the first call; after it has ended, return the damage once."""
        if self._thread is None:
            expected = expected_of(table)
            # Daemon: a store that does not answer must not keep the process from ending.
            self._thread = threading.Thread(
                target=self._run, args=(expected,), name="dump-ingest-damage", daemon=True
            )
            self._thread.start()
        if self._thread.is_alive() or not self._damages:
            return []
        damages, self._damages = self._damages, []
        return [StepDamaged(damage.key, damage.reason, self.objects.address.url) for damage in damages]

    def _run(self, expected: Mapping[StepKey, ExpectedObjects]) -> None:
        try:
            self._damages = damage_in_listing(self.objects, expected)
        except StoreError:
            return  # what else asks the store says so


def expected_of(table: StepTable) -> dict[StepKey, ExpectedObjects]:
    """Return the objects that a listing must show of each step committed before the service began."""
    return {state.key: state.stored for state in table if state.stored is not None}
