"""What a service leaves behind when it ends: steps of the dump that are not in the store."""

from __future__ import annotations

from dataclasses import dataclass, field

from ingest.dispatch.outcomes import StepCommitted
from ingest.layouts.base import Listing
from ingest.watching.watcher import DumpState
from workers.events import Event
from workers.model import SourceFile, StepKey


@dataclass(slots=True)
class Backlog:
    """The steps that the last look showed and that were not committed since; an observer.

    Run files do not count: they change as long as the job runs.
    """

    _pending: dict[StepKey, Listing] = field(default_factory=dict)
    _partial: dict[StepKey, frozenset[SourceFile]] = field(default_factory=dict)
    """The files of steps of which some cannot be taken. A look lists such a step as pending until the watcher
    has planned it again and finds that the store has all of it that can be taken."""

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
                self._pending = {
                    key: listing for key, listing in pending.items() if self._is_left(key, listing)
                }
            case StepCommitted(plan=plan, summary=summary):
                self._pending.pop(summary.key, None)
                self._partial.pop(summary.key, None)
                if summary.status == "partial":
                    self._partial[summary.key] = frozenset(entry.source for entry in plan.entries)

    def _is_left(self, key: StepKey, listing: Listing) -> bool:
        return key.step is not None and self._partial.get(key) != frozenset(listing.files)
