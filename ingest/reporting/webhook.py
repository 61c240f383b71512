"""Findings to a webhook: one POST for each step, from a thread of its own, so that no commit waits for it.

The payload has the form of Prometheus Alertmanager's webhook (version 4), so what takes its messages takes
these. Bounds: `QUEUED` messages wait, of `SENT_FINDINGS` findings each; what comes beyond is dropped and
counted. A message is tried `ATTEMPTS` times, with pauses that double up to `LONGEST_PAUSE_S`, which takes a
minute. A receiver must take the same message twice: an answer may be lost.
"""

from __future__ import annotations

import json
import math
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeAlias

import structlog
import urllib3
import xxhash

from ingest.consolidating.consolidator import StepsConsolidated
from ingest.dispatch.outcomes import StepCommitted
from ingest.settings import TOKEN_VARIABLE
from workers.events import Event
from workers.store.model import SEVERITIES, Finding

QUEUED = 1000
SENT_FINDINGS = 20
ATTEMPTS = 8
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
#: For connecting, and for each read of the answer.
TIMEOUT_S = 5.0
_CLOSE_S = 5.0
#: Answers after which another attempt may help: busy, or broken.
_PASSING = frozenset([408, 425, 429, *range(500, 600)])


@dataclass(frozen=True, slots=True)
class Posted:
    """The receiver has taken a message."""

    findings: int
    attempts: int


@dataclass(frozen=True, slots=True)
class PostRetried:
    """The receiver did not take it; it is tried again."""

    reason: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class PostDropped:
    """A message was given up."""

    findings: int
    reason: str


PostEvent: TypeAlias = Posted | PostRetried | PostDropped


@dataclass(frozen=True, slots=True)
class _Message:
    body: bytes
    findings: int


@dataclass(slots=True, eq=False)
class Webhook:
    """Posts findings of at least one severity. A context manager: its thread ends with it."""

    url: str
    store: str
    severity: str = "warning"
    observers: list[Callable[[PostEvent], None]] = field(default_factory=list)
    """Called from the thread that posts."""
    first_pause_s: float = FIRST_PAUSE_S
    attempts: int = ATTEMPTS
    queued: int = QUEUED
    _queue: queue.Queue[_Message | None] = field(init=False)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        """Make the queue; the thread is started by `__enter__`."""
        self._queue = queue.Queue(self.queued)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="dump-ingest-webhook", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        """Give what is queued a few seconds; then drop it."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        self._stop.set()
        while True:
            try:
                left = self._queue.get_nowait()
            except queue.Empty:
                return
            if left is not None:
                self._tell(PostDropped(left.findings, "the process ended"))

    def observe(self, event: Event) -> None:
        """Take in what a service or a consolidator has found. Never waits."""
        match event:
            case StepCommitted(summary=summary) if summary.findings:
                self.offer(summary.first_findings, summary.findings, summary.severities)
            case StepsConsolidated(findings=steps):
                for one in steps:
                    self.offer(one.found.findings, one.found.totals, one.found.severities)

    def offer(
        self, findings: Sequence[Finding], totals: Mapping[str, int], severities: Mapping[str, str]
    ) -> None:
        """Queue what was found in one step: the worst of it, and how much there is of it."""
        wanted = SEVERITIES[SEVERITIES.index(self.severity) :]
        chosen = [one for one in findings if one.severity in wanted][:SENT_FINDINGS]
        total = sum(count for rule, count in totals.items() if severities.get(rule) in wanted)
        if not chosen:
            return
        message = _Message(json.dumps(payload(self.store, chosen, total), allow_nan=False).encode(), total)
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self._tell(PostDropped(total, "too many messages wait"))

    def _run(self) -> None:
        timeout = urllib3.Timeout(connect=TIMEOUT_S, read=TIMEOUT_S)
        with urllib3.PoolManager(num_pools=1, maxsize=1, timeout=timeout, retries=False) as pool:
            while not self._stop.is_set() and (message := self._queue.get()) is not None:
                self._tell(self._post(pool, message))

    def _post(self, pool: urllib3.PoolManager, message: _Message) -> Posted | PostDropped:
        """Try until it is taken, refused, or tried often enough."""
        reason = ""
        for attempt in range(1, self.attempts + 1):
            reason, is_passing = self._try(pool, message.body)
            if not reason:
                return Posted(message.findings, attempt)
            if not is_passing or attempt == self.attempts:
                break
            pause_s = min(self.first_pause_s * 2 ** (attempt - 1), LONGEST_PAUSE_S)
            self._tell(PostRetried(reason, pause_s))
            if self._stop.wait(pause_s):
                break
        return PostDropped(message.findings, reason)

    def _try(self, pool: urllib3.PoolManager, body: bytes) -> tuple[str, bool]:
        """Return why the receiver did not take it, "" if it did; and whether that may pass."""
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get(TOKEN_VARIABLE):
            headers["Authorization"] = f"Bearer {token}"
        try:
            answer = pool.request(
                "POST", self.url, body=body, headers=headers, redirect=False, preload_content=False
            )
        except (urllib3.exceptions.HTTPError, ValueError, OSError) as exc:
            # Of a token with a line break in it, the message would have the token.
            return type(exc).__name__, not isinstance(exc, ValueError)
        answer.close()  # what it says is not read: it may be endless
        if 200 <= answer.status < 300:
            return "", False
        return f"HTTP {answer.status}", answer.status in _PASSING

    def _tell(self, event: PostEvent) -> None:
        for observer in self.observers:
            observer(event)


def payload(store: str, findings: Sequence[Finding], total: int) -> dict[str, Any]:
    """Return what is posted of one step; `total` counts what is not among the findings, too."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    step = str(findings[0].step)
    common = {"alertname": "DumpIngestFinding", "store": store, "step": step}
    return {
        "version": "4",
        "receiver": "dump-ingest",
        "status": "firing",
        "groupKey": f"dump-ingest:{store}:{step}",
        "truncatedAlerts": max(total - len(findings), 0),
        "groupLabels": common,
        "commonLabels": common,
        "commonAnnotations": {},
        "externalURL": "",
        "alerts": [_alert(one, common, now) for one in findings],
    }


def _alert(one: Finding, common: Mapping[str, str], now: str) -> dict[str, Any]:
    labels = {**common, "rule": one.rule, "severity": one.severity}
    if one.rank is not None:
        labels["rank"] = str(one.rank)
    where = f"step {one.step}" if one.rank is None else f"rank {one.rank} step {one.step}"
    annotations = {"summary": f"{one.rule}: {where}", "description": one.reason}
    if one.name:
        labels["tensor"] = one.name
        labels["graph"] = one.graph
        annotations["summary"] += f": {one.name}"
    if math.isfinite(one.value):
        annotations["value"] = f"{one.value:.9g}"
    if math.isfinite(one.threshold):
        annotations["threshold"] = f"{one.threshold:.9g}"
    return {
        "status": "firing",
        "labels": labels,
        "annotations": annotations,
        "startsAt": now,
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": xxhash.xxh3_64_hexdigest(json.dumps(labels, sort_keys=True).encode()),
    }


class PostLog:
    """Logs what becomes of messages: once when the receiver goes away, and every message that is lost."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("dump_ingest")
        self._said = ""

    def observe(self, event: PostEvent) -> None:
        """Log one event, if it is worth a line."""
        match event:
            case Posted():
                self._said = ""
            case PostRetried(reason=reason, pause_s=pause_s):
                if reason != self._said:
                    self._log.warning("webhook_retried", reason=reason, pause_s=pause_s)
                self._said = reason
            case PostDropped(findings=findings, reason=reason):
                self._log.error("webhook_dropped", findings=findings, reason=reason)
