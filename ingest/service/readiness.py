"""Whether a watcher can do anything at all: the answer of `/ready`."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.layouts.base import ProblemKind
from ingest.watching.watcher import DumpState
from workers.events import Event


@dataclass(slots=True)
class Readiness:
    """Says why a watcher is not ready; an observer, and read by another thread.

    A dump that does not exist yet is waited for, and a store that does not answer comes back: only what
    somebody has to change counts.
    """

    reason: str = ""
    """Why it is not ready; "" if it is."""

    def observe(self, event: Event) -> None:
        """Take in a scan of the dump."""
        if not isinstance(event, DumpState):
            return
        denied = [problem for problem in event.problems if problem.kind is ProblemKind.DENIED]
        readable = [key for key, listing in event.present.items() if key.step is not None and listing.files]
        self.reason = f"nothing of the dump can be read: {denied[0]}" if denied and not readable else ""
