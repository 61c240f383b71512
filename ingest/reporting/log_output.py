"""How lines of the log look, on stderr: readable on a terminal, JSON elsewhere; how often one is repeated.

What lasts is logged when it begins, and again every ten minutes: more lines would hide all others.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog
from structlog.typing import EventDict, Processor

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
#: What is for programs, and what people get in its place: a step with NaN has hundreds of findings.
_FOR_PROGRAMS = frozenset(["finding", "findings_not_logged"])
_FOR_PEOPLE = frozenset(["findings"])
#: Libraries that log more than an operator can use.
_QUIET = ("distributed", "botocore", "aiobotocore", "s3fs", "fsspec", "asyncio", "watchfiles")


def configure(level: str, style: str) -> None:
    """Log our events and the warnings of libraries to stderr, in a common style.

    Args:
        level: the lowest level to log: `debug`, `info`, `warning` or `error`.
        style: `json`, `console`, or `auto`: console on a terminal, JSON elsewhere.
    """
    on_terminal = sys.stderr.isatty()
    console = style == "console" or (style == "auto" and on_terminal)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    form = _for_people if console else _for_programs
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=on_terminal) if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[form, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(_LEVELS[level], logging.ERROR))


def _for_programs(_logger: object, _method: str, event: EventDict) -> EventDict:
    if event["event"] in _FOR_PEOPLE:
        raise structlog.DropEvent
    return event


def _for_people(_logger: object, _method: str, event: EventDict) -> EventDict:
    if event["event"] in _FOR_PROGRAMS:
        raise structlog.DropEvent
    if event["event"] == "step_committed":
        event = {name: value for name, value in event.items() if value != 0 or name in ("rank", "step")}
    if "step" in event and event["step"] is None:
        event["step"] = "run files"
    return event


#: How often a state that lasts is logged again, in seconds.
REMINDER_S = 600.0


@dataclass(slots=True)
class Reminders:
    """Remembers when each state was logged last. Bounded by what `is_due` is asked about."""

    clock: Callable[[], float] = time.monotonic
    _logged_at: dict[str, float] = field(default_factory=dict)

    def is_due(self, state: str) -> bool:
        """Return whether a state is worth a line now, and take it as logged if so."""
        now = self.clock()
        if now < self._logged_at.get(state, -math.inf) + REMINDER_S:
            return False
        self._logged_at[state] = now
        return True

    def keep(self, states: Collection[str]) -> None:
        """Forget all other states: they have ended, and are logged at once when they come back."""
        self._logged_at = {state: at for state, at in self._logged_at.items() if state in states}
