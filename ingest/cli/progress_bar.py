"""The progress bar of `ingest`, on a terminal."""

from __future__ import annotations

import math
from datetime import timedelta

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.text import Text

from ingest.cli.consoles import err
from ingest.units import human_bytes

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


class ProgressBar:
    """Draws bytes and files on stderr, if that is a terminal."""

    def __init__(self) -> None:
        self.drawn = Progress(
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
        self._task = self.drawn.add_task("listing", total=None, files=0)

    def start(self) -> None:
        """Begin to draw."""
        self.drawn.start()

    def stop(self) -> None:
        """Remove the bar."""
        self.drawn.stop()

    def expect(self, nbytes: int) -> None:
        """Take over how many bytes there are."""
        self.drawn.update(self._task, total=nbytes, description="ingesting")

    def reach(self, nbytes: int, files: int) -> None:
        """Take over how many bytes and files are converted."""
        self.drawn.update(self._task, completed=nbytes, files=files)
