"""What `ingest` tells while it works: a progress bar on a terminal, and messages."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from ingest.cli.printing import say
from ingest.disk.pressure import DiskSeen
from ingest.dispatch.outcomes import JobConverted, StepCommitted, TaskRetried
from ingest.watching.watcher import DumpState
from workers.events import Event

if TYPE_CHECKING:
    from ingest.cli.progress_bar import ProgressBar
    from workers.tasks.model import ShardJob


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
            case StepCommitted(plan=plan, summary=summary) if self._bar is not None:
                self._committed_bytes += summary.raw_bytes
                # Jobs do not count the bytes around tensors, and two of them may have tensors of one file.
                around = summary.raw_bytes - sum(job.nbytes for job in plan.jobs)
                self._done_bytes = max(self._done_bytes + around, self._committed_bytes)
                self._done_files += _files(plan.jobs) - sum(_files([job]) for job in plan.jobs)
                self._move_bar()
            case JobConverted(job=job) if self._bar is not None:
                self._done_bytes += job.nbytes
                self._done_files += _files([job])
                self._move_bar()
            case TaskRetried(error=error):
                self._say_once(error.reason, error.message, label="retrying")
            case DiskSeen(leave_out_tensors=reason) if reason:
                self._say_once(
                    "disk", f"{reason}: steps are stored without tensors", label="disk nearly full"
                )

    def _move_bar(self) -> None:
        if self._bar is not None:
            self._bar.reach(self._done_bytes, self._done_files)

    def _say_once(self, kind: str, message: str, *, label: str) -> None:
        if kind not in self._printed:
            self._printed.add(kind)
            say(message, label=label)


def _files(jobs: Iterable[ShardJob]) -> int:
    return len({entry.source for job in jobs for entry in job.entries.values()})
