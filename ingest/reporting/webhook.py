"""Posts incidents to a webhook, in a thread, so that no commit waits for it.

When a step has findings, the store is asked for its incidents, and one message is posted for each that is new
or has grown. If the store does not answer, the findings themselves are posted, one message for each step.

Bounds: up to `QUEUED` messages wait, of `SENT_FINDINGS` findings each; further ones are dropped and counted.
A message is tried `ATTEMPTS` times, with pauses that double up to `LONGEST_PAUSE_S`, for about a minute. A
receiver must accept the same message twice, because an answer may be lost.
"""

from __future__ import annotations

import json
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import urllib3
import xxhash

from ingest.consolidating.consolidator import StepsConsolidated
from ingest.dispatch.submitter import StepCommitted
from ingest.environment import TOKEN_VARIABLE
from ingest.findings.incidents import Incident, Incidents
from ingest.reader.choice import format_ranges
from ingest.reporting.page_link import incidents_link
from workers.errors import DumpIngestError
from workers.events import Event, Observer
from workers.store.model import SEVERITIES, Finding

QUEUED = 1000
SENT_FINDINGS = 20
ATTEMPTS = 8
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
#: For connecting, and for each read of the answer.
TIMEOUT_S = 5.0
_CLOSE_S = 5.0
#: HTTP statuses after which another attempt may help: the receiver is busy or broken.
_PASSING = frozenset([408, 425, 429, *range(500, 600)])


@dataclass(frozen=True, slots=True)
class Posted(Event):
    """The receiver accepted a message."""

    findings: int
    attempts: int


@dataclass(frozen=True, slots=True)
class PostRetried(Event):
    """The receiver did not accept a message; it is sent again."""

    reason: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class PostDropped(Event):
    """A message was given up."""

    findings: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Message:
    body: bytes
    findings: int
    step: int
    incident: str = ""


@dataclass(slots=True, eq=False)
class Webhook:
    """Posts findings of at least one severity. A context manager, whose thread ends with it."""

    url: str
    store: str
    severity: str = "warning"
    incidents: IncidentPosts | None = None
    """Which incidents to post; None to post findings."""
    page_url: str = ""
    observers: list[Observer] = field(default_factory=list)
    """Called from the thread that posts."""
    first_pause_s: float = FIRST_PAUSE_S
    queued: int = QUEUED
    _queue: queue.Queue[_Message | None] = field(init=False)
    _stop: threading.Event = field(default_factory=threading.Event)
    _ending: threading.Event = field(default_factory=threading.Event)
    """What waits is posted at once: the process ends."""
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._queue = queue.Queue(self.queued)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="dump-ingest-webhook", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        self._stop.set()
        for message in self._waiting():
            self._emit(PostDropped(message.findings, "the process ended"))

    def observe(self, event: Event) -> None:
        """Queue the findings of a service or a consolidator. Never waits."""
        match event:
            case StepCommitted(summary=summary) if summary.findings:
                self.offer(summary.first_findings, summary.findings, summary.severities)
            case StepsConsolidated(findings=steps):
                for step in steps:
                    self.offer(step.result.findings, step.result.totals, step.result.severities)

    def offer(
        self, findings: Sequence[Finding], totals: Mapping[str, int], severities: Mapping[str, str]
    ) -> None:
        """Queue the worst findings of one step, and how many it has."""
        severe = SEVERITIES[SEVERITIES.index(self.severity) :]
        worst = [finding for finding in findings if finding.severity in severe][:SENT_FINDINGS]
        total = sum(count for rule, count in totals.items() if severities.get(rule) in severe)
        if not worst:
            return
        body = json.dumps(payload(self.store, worst, total), allow_nan=False).encode()
        try:
            self._queue.put_nowait(_Message(body, total, worst[0].step))
        except queue.Full:
            self._emit(PostDropped(total, "too many messages wait"))

    def _run(self) -> None:
        timeout = urllib3.Timeout(connect=TIMEOUT_S, read=TIMEOUT_S)
        with urllib3.PoolManager(num_pools=1, maxsize=1, timeout=timeout, retries=False) as pool:
            while not self._stop.is_set() and (message := self._queue.get()) is not None:
                for outgoing in self._outgoing(message):
                    posted = self._post(pool, outgoing)
                    if isinstance(posted, PostDropped) and self.incidents is not None:
                        self.incidents.forget(outgoing.incident)
                    self._emit(posted)

    def _outgoing(self, message: _Message) -> list[_Message]:
        """Return the messages about the incidents of a step, and of those that wait; else their findings."""
        if self.incidents is None:
            return [message]
        self._ending.wait(self.incidents.rest_s)
        messages = [message, *self._waiting()]
        try:
            due = list(self.incidents.due({waiting.step for waiting in messages}))
        except DumpIngestError:
            return messages
        return [
            _Message(
                json.dumps(incident_payload(incident, self.page_url), allow_nan=False).encode(),
                incident.findings,
                incident.first_step,
                incident.id,
            )
            for incident in due
        ]

    def _waiting(self) -> list[_Message]:
        messages: list[_Message] = []
        with suppress(queue.Empty):
            while (message := self._queue.get_nowait()) is not None:
                messages.append(message)
            self._queue.put(None)
        return messages

    def _post(self, pool: urllib3.PoolManager, message: _Message) -> Posted | PostDropped:
        reason = ""
        for attempt in range(1, ATTEMPTS + 1):
            reason, is_passing = self._try(pool, message.body)
            if not reason:
                return Posted(message.findings, attempt)
            if not is_passing or attempt == ATTEMPTS:
                break
            pause_s = min(self.first_pause_s * 2 ** (attempt - 1), LONGEST_PAUSE_S)
            self._emit(PostRetried(reason, pause_s))
            if self._stop.wait(pause_s):
                break
        return PostDropped(message.findings, reason)

    def _try(self, pool: urllib3.PoolManager, body: bytes) -> tuple[str, bool]:
        """Return why the receiver did not accept it, "" if it did; and whether another attempt may help."""
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get(TOKEN_VARIABLE):
            headers["Authorization"] = f"Bearer {token}"
        try:
            answer = pool.request(
                "POST", self.url, body=body, headers=headers, redirect=False, preload_content=False
            )
        except (urllib3.exceptions.HTTPError, ValueError, OSError) as exc:
            # Not the message: about a token with a line break in it, that would contain the token.
            return type(exc).__name__, not isinstance(exc, ValueError)
        answer.close()  # its body is not read: it may be endless
        if 200 <= answer.status < 300:
            return "", False
        return f"HTTP {answer.status}", answer.status in _PASSING

    def _emit(self, event: Event) -> None:
        for observer in self.observers:
            observer(event)


def _message(
    groups: Mapping[str, str],
    key: str,
    alerts: Sequence[Mapping[str, Any]],
    *,
    common: Mapping[str, str],
    more: int = 0,
    page_url: str = "",
) -> dict[str, Any]:
    """Return a group of firing alerts in the form of Alertmanager; `more` counts those that are not in it."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    # The zero time of Go: Alertmanager writes it for an alert that fires.
    firing = {"status": "firing", "startsAt": now, "endsAt": "0001-01-01T00:00:00Z"}
    return {
        "version": "4",
        "receiver": "dump-ingest",
        "status": "firing",
        "groupKey": f"dump-ingest:{groups['store']}:{key}",
        "truncatedAlerts": more,
        "groupLabels": groups,
        "commonLabels": common,
        "commonAnnotations": {},
        "externalURL": page_url,
        "alerts": [{**firing, "generatorURL": "", **alert} for alert in alerts],
    }


def payload(store: str, findings: Sequence[Finding], total: int) -> dict[str, Any]:
    """Return the message about one step; `total` also counts findings that are not in it."""
    step = str(findings[0].step)
    common = {"alertname": "DumpIngestFinding", "store": store, "step": step}
    alerts = [_alert(finding, common) for finding in findings]
    return _message(common, step, alerts, common=common, more=max(total - len(findings), 0))


def _alert(finding: Finding, common: Mapping[str, str]) -> dict[str, Any]:
    labels = {**common, "rule": finding.rule, "severity": finding.severity}
    where = f"step {finding.step}"
    if finding.rank is not None:
        labels["rank"] = str(finding.rank)
        where = f"rank {finding.rank} {where}"
    if finding.name:
        labels |= {"tensor": finding.name, "graph": finding.graph}
        where += f": {finding.name}"
    numbers = {"value": finding.value, "threshold": finding.threshold}
    annotations = {"summary": f"{finding.rule}: {where}", "description": finding.reason}
    annotations |= {name: f"{number:.9g}" for name, number in numbers.items() if math.isfinite(number)}
    fingerprint = xxhash.xxh3_64_hexdigest(json.dumps(labels, sort_keys=True).encode())
    return {"labels": labels, "annotations": annotations, "fingerprint": fingerprint}


def incident_payload(incident: Incident, page_url: str = "") -> dict[str, Any]:
    """Return the message about one incident: a group with one alert, whose fingerprint is the id.

    With the URL of the page, the alert leads to the incident on it.
    """
    groups = {"alertname": "DumpIngestIncident", "store": incident.store, "incident": incident.id}
    known = {
        "kind": incident.kind.value,
        "severity": incident.severity,
        "step": str(incident.first_step),
        "rank": "" if incident.rank is None else str(incident.rank),
        **{name: getattr(incident, name) for name in ("host", "op_type", "op_name", "graph", "tensor")},
    }
    annotations = {
        "summary": incident.summary,
        "description": incident.reason,
        "steps": f"{incident.first_step}-{incident.last_step}",
        "ranks": format_ranges(incident.ranks) if incident.ranks else "",
        "tensors": str(incident.tensors),
        "rules": ", ".join(f"{rule} {count}" for rule, count in incident.rules.items()),
    }
    labels = groups | {name: text for name, text in known.items() if text}
    alert = {
        "labels": labels,
        "annotations": {name: text for name, text in annotations.items() if text},
        "generatorURL": incidents_link(page_url, incident.store, id=incident.id),
        "fingerprint": incident.id,
    }
    return _message(groups, incident.id, [alert], common=labels, page_url=page_url)


#: Asking the store takes at most this share of the time, however many steps it has.
_SHARE = 0.1
#: An incident has grown if another rank has it, or if it was seen in this many times the steps.
_GROWTH = 10


@dataclass(slots=True, eq=False)
class IncidentPosts:
    """Remembers what was told. Used by one thread. Memory: an entry for each incident that was told."""

    ask: Callable[[], Incidents]
    severity: str = "warning"
    clock: Callable[[], float] = time.monotonic
    _told: dict[str, Incident] = field(default_factory=dict)
    _rest_until: float = 0.0

    @property
    def rest_s(self) -> float:
        """For how long the store should not be asked, in seconds."""
        return max(self._rest_until - self.clock(), 0.0)

    def due(self, steps: Iterable[int]) -> Iterator[Incident]:
        """Return the incidents of these steps to tell, and take them as told.

        Raises:
            DumpIngestError: the store cannot be reached, or is damaged.
        """
        chosen, severe = set(steps), SEVERITIES[SEVERITIES.index(self.severity) :]
        started = self.clock()
        try:
            incidents = self.ask().incidents
        finally:
            now = self.clock()
            self._rest_until = now + (now - started) / _SHARE
        for incident in incidents:
            touched = any(incident.first_step <= step <= incident.last_step for step in chosen)
            told = self._told.get(incident.id)
            is_news = (
                told is None
                or not {*told.ranks} >= {*incident.ranks}
                or incident.steps >= _GROWTH * told.steps
                or incident.severity != told.severity
            )
            if touched and incident.severity in severe and is_news:
                self._told[incident.id] = incident
                yield incident

    def forget(self, incident: str) -> None:
        """Tell an incident again: the message about it did not arrive."""
        self._told.pop(incident, None)
