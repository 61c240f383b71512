"""Logs events, one line each, to stderr: readable on a terminal, JSON elsewhere."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import structlog
from structlog.typing import Processor

from ingest.consolidating.consolidator import StepsConsolidated
from ingest.disk.pressure import DiskSeen
from ingest.dispatch.outcomes import StepCommitted, StepFailed, StepStale, TaskRetried
from ingest.dispatch.patrol import WorkerReplaced
from ingest.dump_retention.events import ReadBackFailed, SourceDeleted
from ingest.findings.stored import json_row
from ingest.reporting.webhook import PostDropped, Posted, PostRetried
from ingest.steps.events import CommitKept, CommitReverted, DependencyDown, SourceKept, StoreRecovered
from ingest.steps.keep_reasons import KeepReason
from workers.events import Event
from workers.store.events import StoreClockSeen
from workers.store.model import Finding

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
#: Reasons for keeping files in a dump that somebody should look into.
_UNEXPECTED = frozenset([KeepReason.NO_COMMIT, KeepReason.NOT_STORED, KeepReason.CHANGED, KeepReason.DENIED])
#: How often the log says that the disk of the dump is filling up, in seconds.
_FILLING_PAUSE_S = 600.0
#: How many findings of a step get a line each. The others are counted; `anomalies` lists them.
_FINDINGS = 20
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
    """Log what rules found in a step: the worst `_FINDINGS`, one line each, and how many more there are."""
    log = structlog.get_logger("dump_ingest")
    log_by_severity = {"info": log.info, "warning": log.warning, "critical": log.error}
    for finding in findings[:_FINDINGS]:
        log_by_severity[finding.severity]("finding", **json_row(finding))
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
        for step in event.findings:
            log_findings(step.result.findings, step.result.totals)
            for rule, reason in step.result.failed.items():
                log.error("rule_failed", rule=rule, rank=None, step=step.step, reason=reason)


#: From where on clocks that are apart are worth a line, and how often, in seconds. S3 refuses 15 minutes.
_SKEW_S, _SKEW_LOGGED_S = 60.0, 600.0


class ServiceLog:
    """Logs the events of the service: one line per step, with its key, bytes, seconds and outcome."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Log through structlog as it is configured at the time of the event."""
        self._log = structlog.get_logger("dump_ingest")
        self._clock = clock
        self._last_outage = ""
        self._under_pressure = False
        self._logged_filling_at = -math.inf
        self._logged_skew_at = -math.inf

    def observe(self, event: Event) -> None:
        """Log an event, if it is worth a line."""
        match event:
            case StepCommitted():
                self._log_commit(event)
            case StepFailed() | StepStale() | TaskRetried():
                self._log_failure(event)
            case SourceDeleted() | SourceKept() | ReadBackFailed():
                self._log_source(event)
            case DiskSeen():
                self._log_disk(event)
            case CommitKept() | CommitReverted():
                self._log_unexpected(event)
            case DependencyDown() | StoreRecovered():
                self._log_outage(event)
            case WorkerReplaced(worker=worker, task=task, seconds=seconds):
                self._log.error("worker_replaced", worker=worker, task=task, seconds=round(seconds, 1))
            case StoreClockSeen(ahead_s=ahead_s):
                self._log_clock(ahead_s)

    def _log_clock(self, ahead_s: float) -> None:
        """Warn of clocks that are apart, when that begins and now and then while it lasts."""
        now = self._clock()
        if abs(ahead_s) < _SKEW_S:
            self._logged_skew_at = -math.inf
        elif now - self._logged_skew_at >= _SKEW_LOGGED_S:
            self._logged_skew_at = now
            self._log.warning("clock_skew", ahead_of_store_s=ahead_s)

    def _log_commit(self, committed: StepCommitted) -> None:
        plan, summary = committed.plan, committed.summary
        self._last_outage = ""
        left_out = {"without_tensors": plan.without_tensors} if plan.without_tensors else {}
        is_abnormal = (
            plan.without_tensors
            or summary.anomalous_tensors
            or summary.overflows
            or summary.findings
            or summary.status != "complete"
        )
        log = self._log.warning if is_abnormal else self._log.info
        log(
            "step_committed",
            rank=summary.key.rank,
            step=summary.key.step,
            status=summary.status,
            tensors=summary.tensors,
            files=summary.files,
            quarantined=summary.quarantined,
            overflows=summary.overflows,
            source_bytes=summary.raw_bytes,
            stored_bytes=summary.stored_bytes,
            nan_count=summary.nan_count,
            pos_inf_count=summary.pos_inf_count,
            neg_inf_count=summary.neg_inf_count,
            findings=sum(summary.findings.values()),
            seconds=round(committed.seconds, 3),
            **left_out,
        )
        log_findings(summary.first_findings, summary.findings)
        for rule, reason in summary.failed_rules.items():
            self._log.error(
                "rule_failed", rule=rule, rank=summary.key.rank, step=summary.key.step, reason=reason
            )

    def _log_failure(self, event: StepFailed | StepStale | TaskRetried) -> None:
        log = self._log.bind(rank=event.plan.key.rank, step=event.plan.key.step)
        match event:
            case StepFailed(error=error):
                log.error("step_failed", error=error.message, hint=error.hint)
            case StepStale(reason=reason):
                log.info("step_changed", reason=reason)
            case TaskRetried(error=error, attempt=attempt, pause_s=pause_s):
                log.warning("task_retried", attempt=attempt, pause_s=pause_s, error=error.message)

    def _log_source(self, event: SourceDeleted | SourceKept | ReadBackFailed) -> None:
        log = self._log.bind(rank=event.key.rank, step=event.key.step)
        match event:
            case SourceDeleted(files=files, nbytes=nbytes, seconds=seconds):
                log.info("source_deleted", files=files, source_bytes=nbytes, seconds=round(seconds, 3))
            case SourceKept(reason=reason, files=files, detail=detail):
                log_kept = log.warning if reason in _UNEXPECTED else log.info
                log_kept("source_kept", reason=reason.value, files=files, detail=detail)
            case ReadBackFailed(error=error, pause_s=pause_s):
                log.error("read_back_failed", error=error.message, hint=error.hint, pause_s=pause_s)

    def _log_disk(self, disk: DiskSeen) -> None:
        space = {"free_bytes": disk.space.free_nbytes, "free_inodes": disk.space.free_inodes}
        if disk.under_pressure != self._under_pressure:
            self._under_pressure = disk.under_pressure
            if disk.under_pressure:
                self._log.warning("disk_nearly_full", policy=disk.policy, **space)
            else:
                self._log.info("disk_has_room_again", policy=disk.policy, **space)
        if disk.full_in_s is not None and self._clock() >= self._logged_filling_at + _FILLING_PAUSE_S:
            self._logged_filling_at = self._clock()
            self._log.warning("disk_filling", full_in_s=round(disk.full_in_s), **space)

    def _log_unexpected(self, event: CommitKept | CommitReverted) -> None:
        log = self._log.bind(rank=event.key.rank, step=event.key.step)
        if isinstance(event, CommitKept):
            log.warning("commit_kept", files_gone=event.gone)
        else:
            log.warning("commit_went_back")

    def _log_outage(self, event: DependencyDown | StoreRecovered) -> None:
        if isinstance(event, StoreRecovered):
            self._last_outage = ""
            self._log.info("store_is_back")
        elif event.error.message != self._last_outage:  # once, not at every look
            self._last_outage = event.error.message
            self._log.error("trouble", error=event.error.message, hint=event.error.hint)


class PostLog:
    """Logs the fate of messages to the webhook: once when the receiver is lost, and every lost message."""

    def __init__(self) -> None:
        """Log through structlog as it is configured at the time of the event."""
        self._log = structlog.get_logger("dump_ingest")
        self._last_reason = ""

    def observe(self, event: Event) -> None:
        """Log an event, if it is worth a line."""
        match event:
            case Posted():
                self._last_reason = ""
            case PostRetried(reason=reason, pause_s=pause_s):
                if reason != self._last_reason:
                    self._log.warning("webhook_retried", reason=reason, pause_s=pause_s)
                self._last_reason = reason
            case PostDropped(findings=findings, reason=reason):
                self._log.error("webhook_dropped", findings=findings, reason=reason)
