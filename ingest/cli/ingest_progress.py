"""What `ingest` tells while it works: a progress bar on a terminal, and messages."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Self

from ingest.cli.printing import say
from ingest.disk.pressure import DiskSeen
from ingest.dispatch.outcomes import JobConverted, StepCommitted, TaskRetried
from ingest.watching.watcher import DumpState
from workers.events import Event
from workers.model import StepKey

if TYPE_CHECKING:
    from ingest.cli.progress_bar import ProgressBar


class IngestProgress:
    """A progress bar, if there is one; messages about retries and a full disk in any case."""

    def __init__(self, bar: ProgressBar | None = None) -> None:
        self._bar = bar
        self._committed_bytes = self._committed_files = 0
        self._converted_bytes: Counter[StepKey] = Counter()
        """Of steps that are not committed yet. What surrounds the tensors of a file counts at the commit."""
        self._converted_files: defaultdict[StepKey, set[str]] = defaultdict(set)
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
                self._converted_bytes.pop(summary.key, None)
                self._committed_files += len(self._converted_files.pop(summary.key, ()))
                self._move_bar()
            case JobConverted(job=job):
                self._converted_bytes[job.key] += job.nbytes
                self._converted_files[job.key] |= {entry.source.path for entry in job.entries.values()}
                self._move_bar()
            case TaskRetried(error=error):
                self._say_once(error.reason, error.message, label="retrying")
            case DiskSeen(leave_out_tensors=reason) if reason:
                self._say_once(
                    "disk", f"{reason}: steps are stored without tensors", label="disk nearly full"
                )

    @property
    def _done_bytes(self) -> int:
        return self._committed_bytes + self._converted_bytes.total()

    def _move_bar(self) -> None:
        if self._bar is not None:
            files = self._committed_files + sum(map(len, self._converted_files.values()))
            self._bar.reach(self._done_bytes, files)

    def _say_once(self, kind: str, message: str, *, label: str) -> None:
        if kind not in self._printed:
            self._printed.add(kind)
            say(message, label=label)
