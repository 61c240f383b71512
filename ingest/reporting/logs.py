"""Logs events that are worth it, one line each; `log_output` says how the lines look.

The last line of a terminal says what a watcher has done, what it is doing, and what waits.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ingest.consolidating.consolidator import StepsConsolidated
from ingest.disk import DiskSeen
from ingest.dispatch.submitter import StepCommitted, StepFailed, StepStale, TaskRetried
from ingest.dispatch.window import WorkerReplaced
from ingest.dump_retention.policy import ReadBackFailed, SourceDeleted
from ingest.findings.incidents import incidents
from ingest.layouts.base import ProblemKind
from ingest.layouts.black_box import BlackBoxes, RingFound, Trigger
from ingest.reader.catalog import Catalog
from ingest.reader.text import counted
from ingest.reporting.log_output import Reminders
from ingest.reporting.webhook import IncidentPosts, PostDropped, Posted, PostRetried, Webhook
from ingest.settings import Settings
from ingest.steps.committed import FilesNotTaken
from ingest.steps.events import (
    CommitKept,
    CommitReverted,
    ContentReplaced,
    DependencyDown,
    DumpedAgain,
    KeepReason,
    RecheckFailed,
    SourceKept,
    StepDamaged,
    StoreIncident,
    StoreRecovered,
    TensorsDropped,
)
from ingest.steps.watcher import DumpState
from workers.errors import StoreSilent
from workers.events import Event
from workers.model import StepKey
from workers.store.model import Finding
from workers.store.objects import StoreClockSeen
from workers.store.opening import open_objects, resolve
from workers.store.strict_json import finite_or_none

#: Reasons for keeping files in a dump that somebody should look into.
_UNEXPECTED = frozenset([KeepReason.NO_COMMIT, KeepReason.NOT_STORED, KeepReason.CHANGED, KeepReason.DENIED])
#: How many problems of a dump get a line each; `ls --problems` and `doctor` list more.
_PROBLEMS = 20
#: By kind of problem: the name of the event, and its level.
_PROBLEM_LINES = {
    ProblemKind.DENIED: ("cannot_read", "error"),
    ProblemKind.NAME: ("not_ingested", "warning"),
    ProblemKind.OTHER: ("not_ingested", "warning"),
}
#: How many findings of a step get a line each. The others are counted; `anomalies` lists them.
_FINDINGS = 20


def log_findings(findings: Sequence[Finding], totals: Mapping[str, int]) -> None:
    """Log what rules found in a step: the worst `_FINDINGS`, one line each, and how many more there are.

    On a terminal, all of it is one line: how often each rule fired, and the worst finding.
    """
    if not findings:
        return
    log = structlog.get_logger("dump_ingest")
    log_by_severity = {"info": log.info, "warning": log.warning, "critical": log.error}
    worst = findings[0]
    log_by_severity[worst.severity](
        "findings",
        rank=worst.rank,
        step=worst.step,
        rules=", ".join(f"{rule} {count}" for rule, count in totals.items()),
        worst=f"{worst.name}: {worst.reason}" if worst.name else worst.reason,
    )
    for finding in findings[:_FINDINGS]:
        log_by_severity[finding.severity]("finding", **finite_or_none(finding.to_dict()))
    more = sum(totals.values()) - min(len(findings), _FINDINGS)
    if more > 0:
        log.warning("findings_not_logged", rank=findings[0].rank, step=findings[0].step, findings=more)


def log_series(event: Event) -> None:
    """Log what rules over several steps or ranks found in one round of the consolidator."""
    for step in event.findings if isinstance(event, StepsConsolidated) else ():
        log_findings(step.result.findings, step.result.totals)
        for rule, reason in step.result.failed.items():
            structlog.get_logger("dump_ingest").error(
                "rule_failed", rule=rule, rank=None, step=step.step, reason=reason
            )


#: From where on clocks that are apart are worth a line, and how often, in seconds. S3 refuses 15 minutes.
_SKEW_S = 60.0


class ServiceLog:
    """Logs the events of the service: one line per step, with its key, bytes, seconds and outcome."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = structlog.get_logger("dump_ingest")
        self._reminders = Reminders(clock)
        self._problems = Reminders(clock)
        self._filling = Reminders(clock)
        self._under_pressure = False
        self._skew = Reminders(clock)
        self._rings = Reminders(clock)
        self._triggers: set[Trigger] = set()

    def observe(self, event: Event) -> None:
        """Log an event, if it is worth a line."""
        match event:
            case StepCommitted():
                self._log_commit(event)
            case StepFailed() | StepStale() | TaskRetried():
                self._log_failure(event)
            case SourceDeleted() | SourceKept() | ReadBackFailed() | StoreIncident() | TensorsDropped():
                self._log_kept(event)
            case DiskSeen():
                self._log_disk(event)
            case DumpState() | RingFound() | BlackBoxes():
                self._log_dump(event)
            case (
                CommitKept()
                | CommitReverted()
                | DumpedAgain()
                | ContentReplaced()
                | RecheckFailed()
                | StepDamaged()
            ):
                self._log_unexpected(event)
            case DependencyDown() | StoreRecovered():
                self._log_outage(event)
            case WorkerReplaced(worker=worker, task=task, seconds=seconds):
                self._log.error("worker_replaced", worker=worker, task=task, seconds=round(seconds, 1))
            case StoreClockSeen(ahead_s=ahead_s):
                self._log_clock(ahead_s)

    def _log_clock(self, ahead_s: float) -> None:
        if abs(ahead_s) < _SKEW_S:
            self._skew.keep([])
        elif self._skew.is_due("skew"):
            self._log.warning("clock_skew", ahead_of_store_s=ahead_s)

    def _log_commit(self, committed: StepCommitted) -> None:
        plan, summary = committed.plan, committed.summary
        self._reminders.keep([])
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
            case StepFailed(error=FilesNotTaken() as error):
                log.warning("files_not_taken", files=len(error.files), error=error.message, hint=error.hint)
            case StepFailed(error=error):
                log.error("step_failed", error=error.message, hint=error.hint)
            case StepStale(reason=reason):
                log.info("step_changed", reason=reason)
            case TaskRetried(error=error, attempt=attempt, pause_s=pause_s):
                log.warning("task_retried", attempt=attempt, pause_s=pause_s, error=error.message)

    def _log_kept(
        self, event: SourceDeleted | SourceKept | ReadBackFailed | StoreIncident | TensorsDropped
    ) -> None:
        log = self._log.bind(rank=event.key.rank, step=event.key.step)
        match event:
            case SourceDeleted(files=files, nbytes=nbytes, seconds=seconds):
                log.info("source_deleted", files=files, source_bytes=nbytes, seconds=round(seconds, 3))
            case SourceKept(reason=reason, files=files, detail=detail):
                log_kept = log.warning if reason in _UNEXPECTED else log.info
                log_kept("source_kept", reason=reason.value, files=files, detail=detail)
            case ReadBackFailed(error=error, pause_s=pause_s):
                log.error("read_back_failed", error=error.message, hint=error.hint, pause_s=pause_s)
            case StoreIncident(what=what, is_kept=is_kept):
                log.warning("incident", what=what, tensors_are_kept=is_kept)
            case TensorsDropped(nbytes=nbytes):
                log.debug("tensors_dropped", stored_bytes=nbytes)

    def _log_disk(self, disk: DiskSeen) -> None:
        space = {"free_bytes": disk.space.free_nbytes, "free_inodes": disk.space.free_inodes}
        if disk.under_pressure != self._under_pressure:
            self._under_pressure = disk.under_pressure
            if disk.under_pressure:
                self._log.warning("disk_nearly_full", policy=disk.policy, **space)
            else:
                self._log.info("disk_has_room_again", policy=disk.policy, **space)
        if disk.full_in_s is not None and self._filling.is_due("filling"):
            self._log.warning("disk_filling", full_in_s=round(disk.full_in_s), **space)

    def _log_boxes(self, event: RingFound | BlackBoxes) -> None:
        if isinstance(event, RingFound):
            if self._rings.is_due(event.told):
                self._log.warning("black_box", found=event.told)
            return
        for one in sorted(set(event.incidents) - self._triggers):
            self._log.warning("black_box", triggered=str(one), saves=f"{one.first}-{one.last}")
        self._triggers.update(event.incidents)

    def _log_dump(self, event: DumpState | RingFound | BlackBoxes) -> None:
        if not isinstance(event, DumpState):
            self._log_boxes(event)
            return
        problems = event.problems
        shown = {str(problem): problem for problem in problems[:_PROBLEMS]}
        self._problems.keep(shown)
        due = [problem for text, problem in shown.items() if self._problems.is_due(text)]
        for problem in due:
            name, log = _PROBLEM_LINES[problem.kind]
            getattr(self._log, log)(name, path=problem.path, reason=problem.reason, hint=problem.hint)
        if due and len(problems) > len(shown):
            self._log.warning("problems_not_logged", problems=len(problems) - len(shown))

    def _log_unexpected(
        self,
        event: CommitKept | CommitReverted | DumpedAgain | ContentReplaced | RecheckFailed | StepDamaged,
    ) -> None:
        log = self._log.bind(rank=event.key.rank, step=event.key.step)
        match event:
            case CommitKept(gone=gone):
                log.warning("commit_kept", files_gone=gone)
            case DumpedAgain(gone=gone):
                log.warning("step_dumped_again", files_gone=gone)
            case ContentReplaced(files=files):
                log.warning("content_replaced", files=len(files), first=files[0])
            case RecheckFailed(error=error):
                log.error("recheck_failed", error=error.message, hint=error.hint)
            case StepDamaged(reason=reason, store=store):
                log.warning("step_damaged", reason=reason, hint=f"dump-ingest repair {store} mends it")
            case CommitReverted():
                log.warning("commit_went_back")

    def _log_outage(self, event: DependencyDown | StoreRecovered) -> None:
        if isinstance(event, StoreRecovered):
            self._reminders.keep([])
            self._log.info("store_is_back")
            return
        error = event.error
        # What is said of a silent store names another object each time.
        trouble = error.reason if isinstance(error, StoreSilent) else error.message
        self._reminders.keep([trouble])
        if self._reminders.is_due(trouble):
            self._log.error("trouble", error=error.message, hint=error.hint)


class _PostLog:
    """Logs the fate of messages to the webhook: once when the receiver is lost, and every lost message."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("dump_ingest")
        self._last_reason = ""

    def observe(self, event: Event) -> None:
        match event:
            case Posted():
                self._last_reason = ""
            case PostRetried(reason=reason, pause_s=pause_s):
                if reason != self._last_reason:
                    self._log.warning("webhook_retried", reason=reason, pause_s=pause_s)
                self._last_reason = reason
            case PostDropped(findings=findings, reason=reason):
                self._log.error("webhook_dropped", findings=findings, reason=reason)


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
        self._waiting, self._under_way, self._clock = waiting, under_way, clock
        self._committed = self._with_findings = 0
        self._last: tuple[StepKey, float] | None = None

    def observe(self, event: Event) -> None:
        """Count a commit."""
        if isinstance(event, StepCommitted):
            self._committed += 1
            self._with_findings += bool(event.summary.findings)
            self._last = event.summary.key, self._clock()

    def text_within(self, width: int | None = None) -> str:
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
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


@contextmanager
def open_webhook(settings: Settings) -> Iterator[Webhook | None]:
    """Post incidents to the webhook that the settings name, and log what becomes of them; None for none."""
    if settings.webhook is None:
        yield None
        return
    address = resolve(settings.store or "", settings.store_options, timeout_s=settings.store_timeout_s)
    catalog = Catalog(open_objects(address))
    posts = IncidentPosts(lambda: incidents(catalog), settings.webhook_severity)
    page_url = settings.page_url or ""
    with Webhook(settings.webhook, catalog.url, settings.webhook_severity, posts, page_url) as webhook:
        webhook.observers.append(_PostLog().observe)
        yield webhook
