"""Logs: one line per event, to stderr; readable on a terminal, JSON elsewhere."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from ingest.consolidating.consolidator import StepsConsolidated
from ingest.disk.pressure import DiskSeen
from ingest.dispatch.outcomes import StepCommitted, StepFailed, StepStale, TaskRetried
from ingest.dump_retention.events import ReadBackFailed, SourceDeleted
from ingest.steps.events import CommitKept, CommitReverted, DependencyDown, SourceKept, StoreRecovered
from ingest.steps.keep_reasons import KeepReason
from workers.events import Event
from workers.store.model import Finding

if TYPE_CHECKING:
    from structlog.typing import Processor

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
#: Why files stay in a dump, where somebody has to look.
_KEPT_UNASKED = frozenset(
    [KeepReason.NO_COMMIT, KeepReason.NOT_STORED, KeepReason.CHANGED, KeepReason.DENIED]
)
#: How often it is said that the disk of the dump fills, in seconds.
_FILLING_PAUSE_S = 600.0
#: Findings of one step that get a line each; the others are counted, and listed by `anomalies`.
_FINDINGS = 20
#: Libraries that say more than an operator can use.
_QUIET = ("distributed", "botocore", "aiobotocore", "s3fs", "fsspec", "asyncio", "watchfiles")


def configure(level: str, style: str) -> None:
    """Send our events and the warnings of libraries to stderr, in one style."""
    on_terminal = sys.stderr.isatty()
    console = style == "console" or (style == "auto" and on_terminal)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=on_terminal) if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
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


def log_findings(findings: Sequence[Finding], totals: Mapping[str, int]) -> None:
    """Log what rules found in a step: the worst `_FINDINGS`, one line each, and how much more there is."""
    log = structlog.get_logger("dump_ingest")
    tell = {"info": log.info, "warning": log.warning, "critical": log.error}
    for one in findings[:_FINDINGS]:
        row = {name: _plain(value) for name, value in one.to_dict().items()}
        tell[one.severity]("finding", **row)
    more = sum(totals.values()) - min(len(findings), _FINDINGS)
    if more > 0:
        log.warning("findings_not_logged", rank=findings[0].rank, step=findings[0].step, findings=more)


class SeriesLog:
    """Logs what rules over several steps or ranks found."""

    def observe(self, event: Event) -> None:
        """Log the findings of one round of the consolidator."""
        if not isinstance(event, StepsConsolidated):
            return
        log = structlog.get_logger("dump_ingest")
        for one in event.findings:
            log_findings(one.found.findings, one.found.totals)
            for rule, reason in one.found.failed.items():
                log.error("rule_failed", rule=rule, rank=None, step=one.step, reason=reason)


def _plain(value: Any) -> Any:
    # JSON has no NaN.
    return None if isinstance(value, float) and not math.isfinite(value) else value


class ServiceLog:
    """Logs what happens in the service: one line per step, with its key, bytes, seconds and outcome."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Log through structlog as it is configured at the time of the event."""
        self._log = structlog.get_logger("dump_ingest")
        self._clock = clock
        self._last_trouble = ""
        self._under_pressure = False
        self._said_filling = -math.inf

    def observe(self, event: Event) -> None:
        """Log one event, if it is worth a line."""
        match event:
            case StepCommitted():
                self._observe_commit(event)
            case StepFailed(plan=plan, error=error):
                self._log.error(
                    "step_failed",
                    rank=plan.key.rank,
                    step=plan.key.step,
                    error=error.message,
                    hint=error.hint,
                )
            case StepStale(plan=plan, reason=reason):
                self._log.info("step_changed", rank=plan.key.rank, step=plan.key.step, reason=reason)
            case TaskRetried(plan=plan, error=error, attempt=attempt, pause_s=pause_s):
                self._log.warning(
                    "task_retried",
                    rank=plan.key.rank,
                    step=plan.key.step,
                    attempt=attempt,
                    pause_s=pause_s,
                    error=error.message,
                )
            case SourceDeleted() | SourceKept() | ReadBackFailed():
                self._observe_source(event)
            case DiskSeen():
                self._observe_disk(event)
            case CommitKept() | CommitReverted():
                self._observe_unexpected(event)
            case DependencyDown() | StoreRecovered():
                self._observe_trouble(event)

    def _observe_trouble(self, event: DependencyDown | StoreRecovered) -> None:
        if isinstance(event, StoreRecovered):
            self._last_trouble = ""
            self._log.info("store_is_back")
        elif event.error.message != self._last_trouble:  # once, not at every look
            self._last_trouble = event.error.message
            self._log.error("trouble", error=event.error.message, hint=event.error.hint)

    def _observe_unexpected(self, event: CommitKept | CommitReverted) -> None:
        rank, step = event.key.rank, event.key.step
        if isinstance(event, CommitKept):
            self._log.warning("commit_kept", rank=rank, step=step, files_gone=event.gone)
        else:
            self._log.warning("commit_went_back", rank=rank, step=step)

    def _observe_commit(self, committed: StepCommitted) -> None:
        plan, s, seconds = committed.plan, committed.summary, committed.seconds
        self._last_trouble = ""
        left_out = {"without_tensors": plan.without_tensors} if plan.without_tensors else {}
        tell = (
            self._log.warning
            if left_out or s.anomalous_tensors or s.overflows or s.findings or s.status != "complete"
            else self._log.info
        )
        tell(
            "step_committed",
            rank=s.key.rank,
            step=s.key.step,
            status=s.status,
            tensors=s.tensors,
            files=s.files,
            quarantined=s.quarantined,
            overflows=s.overflows,
            source_bytes=s.raw_bytes,
            stored_bytes=s.stored_bytes,
            nan_count=s.nan_count,
            pos_inf_count=s.pos_inf_count,
            neg_inf_count=s.neg_inf_count,
            findings=sum(s.findings.values()),
            seconds=round(seconds, 3),
            **left_out,
        )
        log_findings(s.first_findings, s.findings)
        for rule, reason in s.failed_rules.items():
            self._log.error("rule_failed", rule=rule, rank=s.key.rank, step=s.key.step, reason=reason)

    def _observe_source(self, event: SourceDeleted | SourceKept | ReadBackFailed) -> None:
        match event:
            case SourceDeleted(key=key, files=files, nbytes=nbytes, seconds=seconds):
                self._log.info(
                    "source_deleted",
                    rank=key.rank,
                    step=key.step,
                    files=files,
                    source_bytes=nbytes,
                    seconds=round(seconds, 3),
                )
            case SourceKept(key=key, reason=reason, files=files, detail=detail):
                tell = self._log.warning if reason in _KEPT_UNASKED else self._log.info
                tell(
                    "source_kept",
                    rank=key.rank,
                    step=key.step,
                    reason=reason.value,
                    files=files,
                    detail=detail,
                )
            case ReadBackFailed(key=key, error=error, pause_s=pause_s):
                self._log.error(
                    "read_back_failed",
                    rank=key.rank,
                    step=key.step,
                    error=error.message,
                    hint=error.hint,
                    pause_s=pause_s,
                )

    def _observe_disk(self, seen: DiskSeen) -> None:
        space = {"free_bytes": seen.space.free_nbytes, "free_inodes": seen.space.free_inodes}
        if seen.under_pressure != self._under_pressure:
            self._under_pressure = seen.under_pressure
            if seen.under_pressure:
                self._log.warning("disk_nearly_full", policy=seen.policy, **space)
            else:
                self._log.info("disk_has_room_again", policy=seen.policy, **space)
        if seen.full_in_s is not None and self._clock() >= self._said_filling + _FILLING_PAUSE_S:
            self._said_filling = self._clock()
            self._log.warning("disk_filling", full_in_s=round(seen.full_in_s), **space)
