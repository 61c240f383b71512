"""The log of `gc --apply`: a line for each removal, because what is gone cannot be looked up any more."""

from __future__ import annotations

import structlog

from ingest.reporting.log_output import configure
from ingest.settings import Settings
from ingest.store_gc.execute import Execution, GcDone


def log_removals(execution: Execution, settings: Settings) -> None:
    """Write a line to the log for everything that is removed or left alone."""
    configure(settings.log_level, settings.log_format)
    execution.observe = _log


def _log(done: object) -> None:
    if not isinstance(done, GcDone):
        return
    action = done.action
    log = structlog.get_logger("dump_ingest").bind(
        what=action.what,
        rank=action.rank,
        step=action.step,
        generation=action.generation,
        path=action.path or None,
        why=action.why,
    )
    if done.left:
        log.warning("gc_left_alone", reason=done.left)
    else:
        log.info("gc_removed", objects=done.objects, nbytes=done.nbytes)
