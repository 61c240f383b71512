"""The last line of a terminal: what a watcher has done, what it is doing, and what waits."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ingest.dispatch.outcomes import StepCommitted
from ingest.reader.text import counted
from workers.events import Event
from workers.model import StepKey

#: How often the line is drawn, per second.
_RATE = 2


class StatusLine:
    """Counts what happens, as an observer, and draws it below the log of a terminal."""

    def __init__(
        self,
        waiting: Callable[[], int],
        under_way: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take two functions: how many steps wait, and how many tasks are under way."""
        self._waiting, self._under_way, self._clock = waiting, under_way, clock
        self._committed = self._with_findings = 0
        self._last: tuple[StepKey, float] | None = None

    def observe(self, event: Event) -> None:
        """Count a commit."""
        if isinstance(event, StepCommitted):
            self._committed += 1
            self._with_findings += bool(event.summary.findings)
            self._last = event.summary.key, self._clock()

    @property
    def text(self) -> str:
        """The whole line."""
        return self.text_within(None)

    def text_within(self, width: int | None) -> str:
        """Return the line, without the last parts that `width` columns cannot hold (None: all of it)."""
        findings = f" ({self._with_findings} with findings)" if self._with_findings else ""
        text = f"watching: {self._committed} committed{findings}"
        parts = [f"{self._waiting()} not yet", counted(self._under_way(), "task")]
        if self._last is not None:
            key, at = self._last
            parts.append(f"last: {key}, {self._clock() - at:.0f} s ago")
        for part in parts:
            longer = f"{text}, {part}"
            if width is not None and len(longer) > width:
                break
            text = longer
        return text

    @contextmanager
    def shown(self, console: Console | None = None) -> Iterator[None]:
        """Draw the line for as long as this lasts; what is logged meanwhile goes above it."""
        screen = console or Console(stderr=True)
        live = Live(
            console=screen,
            get_renderable=lambda: Text(
                self.text_within(screen.width), "dim", no_wrap=True, overflow="ellipsis"
            ),
            refresh_per_second=_RATE,
            redirect_stdout=False,
            transient=True,
        )
        before = sys.stderr
        with live:
            _move_logs(before, sys.stderr)
            try:
                yield
            finally:
                _move_logs(sys.stderr, before)


def _move_logs(old: object, new: object) -> None:
    """Have handlers that log to one stream log to another."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)
