"""What `ingest` tells while it works: a progress bar on a terminal, and messages."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from ingest.cli.printing import say
from ingest.disk.pressure import DiskSeen
from ingest.dispatch.outcomes import JobConverted, StepCommitted, TaskRetried
from ingest.watching.watcher import DumpState
from workers.events import Event

if TYPE_CHECKING:
    from ingest.cli.progress_bar import ProgressBar


class IngestProgress:
    """A progress bar, if there is one; messages about retries and a full disk in any case."""

    def __init__(self, bar: ProgressBar | None = None) -> None:
        self._bar = bar
        self._done_bytes = self._done_files = self._committed_bytes = 0
        self._printed: set[str] = set()
        """The kinds of messages that were printed: each is printed once."""

    @classmethod
    def on_stderr(cls) -> Self:
        """Return progress with a bar if stderr is a terminal."""
        if not sys.stderr.isatty():
            return cls()
        from ingest.cli.progress_bar import ProgressBar  # deferred: rich takes 0.04 s, for terminals only

        return cls(ProgressBar())

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def observe(self, event: Event) -> None:
        """Move the bar, or print a message."""
        match event:
            case DumpState():
                pending = sum(listing.nbytes for listing in event.pending.values())
                total = max(self._committed_bytes + pending, self._done_bytes)
                if self._bar is not None:
                    self._bar.expect(total)
            case StepCommitted(summary=summary):
                self._committed_bytes += summary.raw_bytes
            case JobConverted(job=job):
                self._done_bytes += job.nbytes
                self._done_files += len(job.entries)
                if self._bar is not None:
                    self._bar.reach(self._done_bytes, self._done_files)
            case TaskRetried(error=error):
                self._say_once(error.reason, error.message, label="retrying")
            case DiskSeen(leave_out_tensors=reason) if reason:
                self._say_once(
                    "disk", f"{reason}: steps are stored without tensors", label="disk nearly full"
                )

    def _say_once(self, kind: str, message: str, *, label: str) -> None:
        if kind not in self._printed:
            self._printed.add(kind)
            say(message, label=label)
