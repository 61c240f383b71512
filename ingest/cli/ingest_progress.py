"""What `ingest` tells while it works: a progress bar on a terminal, and messages."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from ingest.cli.printing import say
from ingest.disk.pressure import DiskSeen
from ingest.dispatch.outcomes import JobConverted, StepCommitted, TaskRetried
from ingest.watching.watcher import DumpState
from workers.events import Event

if TYPE_CHECKING:
    from rich.progress import Progress

    from workers.tasks.model import ShardJob

#: Over how many seconds speed and remaining time are taken: all of them, because results come in bursts.
_SPEED_OVER_S = 1e9


def progress_bar() -> Progress:
    """Return a bar of bytes and files for stderr, which draws nothing if that is not a terminal."""
    from rich import progress  # deferred: takes 0.04 s, for terminals only

    from ingest.cli.consoles import err  # deferred: the same

    return progress.Progress(
        progress.TextColumn("[bold]{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[files]} files"),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=err,
        disable=not err.is_terminal,
        transient=True,
        speed_estimate_period=_SPEED_OVER_S,
    )


class IngestProgress:
    """A progress bar, if there is one; messages about retries and a full disk in any case."""

    def __init__(self, bar: Progress | None = None) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task("listing", total=None, files=0)
        self._done_bytes = self._done_files = self._committed_bytes = 0
        self._printed: set[str] = set()
        """The kinds of messages that were printed: each is printed once."""

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @classmethod
    def on_stderr(cls) -> Self:
        """Return progress with a bar if stderr is a terminal."""
        return cls(progress_bar() if sys.stderr.isatty() else None)

    def observe(self, event: Event) -> None:
        """Move the bar, or print a message."""
        match event:
            case DumpState():
                pending = sum(listing.nbytes for listing in event.pending.values())
                total = max(self._committed_bytes + pending, self._done_bytes)
                self._update(total=total, description="ingesting")
            case StepCommitted(plan=plan, summary=summary):
                self._committed_bytes += summary.raw_bytes
                # Jobs do not count the bytes around tensors, and two of them may have tensors of one file.
                around = summary.raw_bytes - sum(job.nbytes for job in plan.jobs)
                self._done_bytes = max(self._done_bytes + around, self._committed_bytes)
                self._done_files += _files(plan.jobs) - sum(_files([job]) for job in plan.jobs)
                self._update(completed=self._done_bytes, files=self._done_files)
            case JobConverted(job=job):
                self._done_bytes += job.nbytes
                self._done_files += _files([job])
                self._update(completed=self._done_bytes, files=self._done_files)
            case TaskRetried(error=error):
                self._say_once(error.reason, error.message, label="retrying")
            case DiskSeen(leave_out_tensors=reason) if reason:
                message = f"{reason}: steps are stored without tensors"
                self._say_once("disk", message, label="disk nearly full")

    def _update(self, **changes: Any) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, **changes)

    def _say_once(self, kind: str, message: str, *, label: str) -> None:
        if kind not in self._printed:
            self._printed.add(kind)
            say(message, label=label)


def _files(jobs: Iterable[ShardJob]) -> int:
    return len({entry.source for job in jobs for entry in job.entries.values()})
