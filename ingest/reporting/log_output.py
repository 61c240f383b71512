"""How lines of the log look, on stderr: readable on a terminal, JSON elsewhere."""

from __future__ import annotations

import logging
import sys

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
    """Pass on what JSON has."""
    if event["event"] in _FOR_PEOPLE:
        raise structlog.DropEvent
    return event


def _for_people(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Pass on what a terminal has: of a commit, no counts that are zero."""
    if event["event"] in _FOR_PROGRAMS:
        raise structlog.DropEvent
    if event["event"] == "step_committed":
        event = {name: value for name, value in event.items() if value != 0 or name in ("rank", "step")}
    if "step" in event and event["step"] is None:
        event["step"] = "run files"
    return event
