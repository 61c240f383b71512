"""What a service leaves behind when it ends: steps of the dump that are not in the store."""

from __future__ import annotations

from dataclasses import dataclass, field

from ingest.dispatch.outcomes import StepCommitted
from ingest.layouts.base import Listing
from ingest.watching.watcher import DumpState
from workers.events import Event
from workers.model import StepKey


@dataclass(slots=True)
class Backlog:
    """The steps that the last look showed and that were not committed since; an observer.

    Run files do not count: they change as long as the job runs.
    """

    _pending: dict[StepKey, Listing] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How many steps are not in the store as they were seen last, complete or not."""
        return len(self._pending)

    @property
    def nbytes(self) -> int:
        """The bytes of their files."""
        return sum(listing.nbytes for listing in self._pending.values())

    def observe(self, event: Event) -> None:
        """Take in a look or a commit."""
        match event:
            case DumpState(pending=pending):
                self._pending = {key: listing for key, listing in pending.items() if key.step is not None}
            case StepCommitted(summary=summary):
                self._pending.pop(summary.key, None)
