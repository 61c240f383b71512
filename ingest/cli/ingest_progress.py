"""The progress bar of `ingest`."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.text import Text

from ingest.cli.printing import err, say
from ingest.disk.pressure import DiskSeen
from ingest.dispatch.outcomes import JobConverted, StepCommitted, TaskRetried
from ingest.units import human_bytes
from ingest.watching.watcher import DumpState
from workers.events import Event

#: Seconds before a speed is shown: the first results come all at once.
_SETTLED_S = 3


class SpeedColumn(ProgressColumn):
    """Bytes per second since the begin, in the units of the bytes beside it."""

    def render(self, task: Task) -> Text:
        """Return the speed; nothing in the first seconds."""
        elapsed = task.elapsed or 0
        if elapsed < _SETTLED_S or not task.completed:
            return Text("")
        return Text(f"{human_bytes(task.completed / elapsed)}/s", "progress.data.speed")


class RemainingColumn(ProgressColumn):
    """The time that is left at the speed beside it: rich would take that of the last burst of results."""

    def render(self, task: Task) -> Text:
        """Return the time; nothing in the first seconds."""
        elapsed = task.elapsed or 0
        if elapsed < _SETTLED_S or not task.completed or task.remaining is None:
            return Text("")
        seconds = math.ceil(task.remaining * elapsed / task.completed)
        return Text(str(timedelta(seconds=seconds)), "progress.remaining")


class IngestProgress:
    """A progress bar on stderr if that is a terminal; messages about retries and a full disk in any case."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[files]} files"),
            DownloadColumn(binary_units=True),
            SpeedColumn(),
            RemainingColumn(),
            console=err,
            disable=not err.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("listing", total=None, files=0)
        self._done_bytes = self._done_files = self._committed_bytes = 0
        self._printed: set[str] = set()
        """The kinds of messages that were printed: each is printed once."""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def observe(self, event: Event) -> None:
        """Move the bar, or print a message."""
        match event:
            case DumpState():
                pending = sum(listing.nbytes for listing in event.pending.values())
                total = max(self._committed_bytes + pending, self._done_bytes)
                self._bar.update(self._task, total=total, description="ingesting")
            case StepCommitted(summary=summary):
                self._committed_bytes += summary.raw_bytes
            case JobConverted(job=job):
                self._done_bytes += job.nbytes
                self._done_files += len(job.entries)
                self._bar.update(self._task, completed=self._done_bytes, files=self._done_files)
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
