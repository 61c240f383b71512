"""What is told of a run: logs, lines, webhooks, alerts and links."""

from __future__ import annotations

import io
import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from pydantic import ValidationError
from rich.console import Console

import ingest
from ingest.dispatch.submitter import StepCommitted
from ingest.dump_retention.policy import ReadBackFailed, SourceDeleted
from ingest.findings.incidents import Incident, IncidentKind
from ingest.layouts.base import Problem
from ingest.reporting.log_output import configure
from ingest.reporting.logs import ServiceLog, StatusLine, log_findings
from ingest.reporting.page_link import incidents_link
from ingest.reporting.webhook import IncidentPosts, PostDropped, Posted, Webhook, incident_payload, payload
from ingest.settings import Settings, load
from ingest.steps.events import CommitKept, CommitReverted, KeepReason, RecheckFailed, SourceKept, StepDamaged
from tests.metric_values import listing, look
from tests.page_server import RunningPage
from tests.servers.http import HttpServer
from tests.stores import DumpLibrary, MadeDump, ingest_directly, plan_all, run
from workers.errors import DamagedStore, StoreSilent, UsageError
from workers.events import Event
from workers.model import StepKey
from workers.rules.schema import load_rules
from workers.store.model import CommitSummary, Finding
from workers.tasks.model import StepPlan

# Findings in the form of Alertmanager's webhook.


NAN = Finding("nan", "critical", 1, 7, 3, "0", "Log.x.output.0", 2.0, math.nan, "2 NaN of 24 elements")
MISSING = Finding("missing", "warning", None, 7, -1, "", "", math.nan, math.nan, "step missing on rank 1")


def message(*findings: Finding, total: int = 2) -> dict[str, Any]:
    return payload("run.zarr", findings, total)


def test_the_same_finding_has_the_same_fingerprint_and_others_have_another() -> None:
    first, second = message(NAN, MISSING)["alerts"]
    assert first["fingerprint"] != second["fingerprint"]
    assert message(NAN)["alerts"][0]["fingerprint"] == first["fingerprint"]


def test_an_incident_is_one_alert_with_its_id_host_and_store() -> None:
    incident = Incident(
        id="0123456789abcdef",
        kind=IncidentKind.NAN,
        severity="critical",
        store="/data/run.zarr",
        host="node-1",
        rank=1,
        first_step=2,
        last_step=9,
        steps=8,
        ranks=(0, 1),
        op_type="Log",
        op_name="op0",
        summary="NaN born in Log (op0) on rank 1, step 2",
        reason="logarithm of a number that is not positive (2 of 24 elements)",
        tensors=10,
        rules={"nan": 10},
    )
    body = incident_payload(incident)
    (alert,) = body["alerts"]
    assert (body["version"], body["groupKey"]) == ("4", "dump-ingest:/data/run.zarr:0123456789abcdef")
    assert alert["fingerprint"] == alert["labels"]["incident"] == incident.id
    assert (alert["labels"]["host"], alert["labels"]["rank"], alert["labels"]["step"]) == ("node-1", "1", "2")
    assert alert["annotations"] == {
        "summary": incident.summary,
        "description": incident.reason,
        "steps": "2-9",
        "ranks": "0-1",
        "tensors": "10",
        "rules": "nan 10",
    }
    assert "graph" not in alert["labels"]
    json.dumps(body, allow_nan=False)


# Which incidents are told: new ones and those that have grown.


@pytest.fixture(scope="module")
def answer(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> ingest.Incidents:
    store = tmp_path_factory.mktemp("posts") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    return ingest.incidents(ingest.open_store(Path(store)))


def test_an_incident_is_told_again_when_another_rank_has_it(answer: ingest.Incidents) -> None:
    (incident,) = answer.incidents
    now = [incident]
    posts = IncidentPosts(lambda: replace(answer, incidents=tuple(now)))
    assert list(posts.due([2])) == [incident]
    assert list(posts.due([2, 3])) == []
    now[:] = [replace(incident, last_step=5, steps=4)]
    assert list(posts.due([5])) == []
    now[:] = [replace(incident, ranks=(0, 1))]
    assert list(posts.due([3])) == now
    now[:] = [replace(incident, ranks=(0, 1), last_step=40, steps=39)]
    assert list(posts.due([40])) == now
    posts.forget(incident.id)
    assert list(posts.due([40])) == now


def test_asking_takes_a_tenth_of_the_time(answer: ingest.Incidents) -> None:
    now = [100.0]

    def slow() -> ingest.Incidents:
        now[0] += 3
        return answer

    posts = IncidentPosts(slow, clock=lambda: now[0])
    assert posts.rest_s == 0
    assert len(list(posts.due([2]))) == 1
    assert posts.rest_s == pytest.approx(30)


# Lines of the log: for programs, and for people.


FINDING = Finding("rule", "critical", 3, 7, 0, "0", "Relu.x.output.0", math.nan, 1.0, "what it is")


@pytest.fixture
def unconfigured() -> Iterator[None]:
    """Leave logging as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
    structlog.reset_defaults()


@pytest.mark.usefixtures("unconfigured")
def test_lines_are_json_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "auto")
    assert not sys.stderr.isatty()
    structlog.get_logger("dump_ingest").info("step_changed", rank=1)
    structlog.get_logger("dump_ingest").debug("too little to tell")
    logging.getLogger("library").warning("careful")
    logging.getLogger("distributed").warning("too much to tell")
    log_findings([FINDING, replace(FINDING, severity="info")], {"nan": 30, "large": 1})
    first, second, *rest = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["event"], first["rank"], first["level"]) == ("step_changed", 1, "info")
    assert (second["event"], second["level"]) == ("careful", "warning")
    assert [line["event"] for line in rest] == ["finding", "finding", "findings_not_logged"]


# One line for each event that is worth one.


KEY = StepKey(3, 7)


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """What was logged in this test."""
    with structlog.testing.capture_logs() as logged:
        yield logged


@pytest.fixture
def committed(made: MadeDump, store: Path) -> tuple[StepPlan, CommitSummary]:
    made.add(np.arange(5, dtype="<f4"))
    (plan,) = plan_all(made.root, store)
    return plan, run(plan)


def names(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["event"], line["log_level"]) for line in lines]


def test_a_healthy_commit_is_information_and_an_abnormal_one_a_warning(
    committed: tuple[StepPlan, CommitSummary], lines: list[Any]
) -> None:
    plan, summary = committed
    log = ServiceLog()
    log.observe(StepCommitted(plan, summary, 1.23456))
    log.observe(StepCommitted(plan, replace(summary, status="partial"), 1.0))
    log.observe(StepCommitted(replace(plan, without_tensors="the disk is full"), summary, 1.0))
    assert names(lines) == [("step_committed", level) for level in ("info", "warning", "warning")]
    assert (lines[0]["rank"], lines[0]["step"], lines[0]["seconds"]) == (0, 0, 1.235)
    assert lines[2]["without_tensors"] == "the disk is full"


@pytest.mark.parametrize(
    ("event", "name", "level"),
    [
        (SourceDeleted(KEY, 2, 200, 0.1), "source_deleted", "info"),
        (SourceKept(KEY, KeepReason.NEWEST, 2, "of the newest"), "source_kept", "info"),
        (SourceKept(KEY, KeepReason.NOT_STORED, 2, "a.npy"), "source_kept", "warning"),
        (ReadBackFailed(KEY, DamagedStore("a shard is missing"), 1.0), "read_back_failed", "error"),
        (CommitKept(KEY, 4), "commit_kept", "warning"),
        (CommitReverted(KEY), "commit_went_back", "warning"),
        (RecheckFailed(KEY, DamagedStore("x")), "recheck_failed", "error"),
        (StepDamaged(KEY, "a shard is missing", "run.zarr"), "step_damaged", "warning"),
    ],
)
def test_what_happens_to_a_dump_is_logged(event: Event, name: str, level: str, lines: list[Any]) -> None:
    ServiceLog().observe(event)
    assert names(lines) == [(name, level)]
    assert (lines[0]["rank"], lines[0]["step"]) == (3, 7)


def test_what_cannot_be_read_is_logged_once_and_again_every_ten_minutes(lines: list[Any]) -> None:
    now = [0.0]
    log = ServiceLog(lambda: now[0])
    denied = Problem("rank_1", "permission denied", "grant it", denied=True)
    misnamed = Problem("rank-2", "is not a rank", misnamed=True)
    links = tuple(Problem(f"rank_0/{number}", "is a symbolic link") for number in range(30))
    seen = replace(look([listing(0, 1)], []), problems=(denied, misnamed))
    for at in (0.0, 300.0, 601.0):
        now[0] = at
        log.observe(seen)
    once = [("cannot_read", "error"), ("not_ingested", "warning")]
    assert names(lines) == once * 2
    assert (lines[0]["path"], lines[0]["reason"], lines[0]["hint"]) == (
        "rank_1",
        "permission denied",
        "grant it",
    )
    log.observe(look([listing(0, 1)], []))
    log.observe(seen)  # it is back
    assert names(lines) == once * 3
    log.observe(replace(seen, problems=links))
    assert len(lines) == 6 + 20 + 1
    assert (lines[-1]["event"], lines[-1]["problems"]) == ("problems_not_logged", 10)


# Where an alert leads.


def test_an_alert_leads_to_its_incident_on_the_page(nan_log: Path) -> None:
    (incident,) = ingest.incidents(ingest.open_store(nan_log)).incidents
    with RunningPage(nan_log) as page:
        message = incident_payload(incident, f"{page.url}/")
        url = message["alerts"][0]["generatorURL"]
        assert url.startswith(page.url)
        got = page.get(url.removeprefix(page.url))
        assert (got.status, f"Incident {incident.id}" in got.text) == (200, True)


def test_a_rank_and_step_lead_to_the_incidents_that_were_seen_there(nan_log: Path) -> None:
    with RunningPage(nan_log) as page:
        links = [
            incidents_link(page.url, str(nan_log), rank=rank, step=step) for rank, step in ((1, 2), (0, 1))
        ]
        bad, good = (page.get(link.removeprefix(page.url)) for link in links)
    assert "NaN born in Log" in bad.text
    assert "--rank 1 --step 2" in bad.lines[0]
    assert "<h1>No incident</h1>" in good.text
    assert incidents_link("", str(nan_log), rank=1, step=2) == ""


def test_without_a_page_there_is_no_link() -> None:
    assert incidents_link("", "s3://bucket/run.zarr", id="0") == ""
    assert incidents_link("https://page/dumps", "s3://bucket/a b.zarr", id="0f") == (
        "https://page/dumps/runs/a%20b.zarr/incidents?id=0f"
    )


# A terminal shows in its last line what a watcher does, and the log above it.


@pytest.fixture
def committed_step(made: MadeDump, store: Path) -> StepCommitted:
    made.add(np.arange(5, dtype="<f4"))
    (plan,) = plan_all(made.root, store)
    return StepCommitted(plan, run(plan), 1.0)


def test_line_counts_commits_and_what_waits(committed_step: StepCommitted) -> None:
    now = [10.0]
    status = StatusLine(lambda: 7, lambda: 2, clock=lambda: now[0])
    assert status.text_within() == "watching: 0 committed, 7 not yet, 2 tasks"
    status.observe(committed_step)
    status.observe(replace(committed_step, summary=replace(committed_step.summary, findings={"nan": 1})))
    now[0] = 25.0
    assert status.text_within() == (
        "watching: 2 committed (1 with findings), 7 not yet, 2 tasks, last: rank 0 step 0, 15 s ago"
    )


def test_log_stands_above_the_line_and_goes_on_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    console = Console(file=terminal, force_terminal=True, width=80)
    with StatusLine(lambda: 3, lambda: 0).shown(console):
        logging.getLogger().error("a line of the log")
        assert handler.stream is not terminal
    assert handler.stream is terminal
    assert sys.stderr is terminal
    drawn = terminal.getvalue()
    assert "a line of the log\n" in drawn.replace("\r", "")
    assert "0 committed, 3 not yet" in drawn


# Messages to a webhook: they arrive also when the receiver was away, and nobody waits for them.


SECRET = "not-for-logs"  # noqa: S105  (of a test)


@dataclass
class Receiver:
    """An HTTP server that answers as it is told, and keeps what it got."""

    answers: list[int] = field(default_factory=list)
    """For the first requests; 200 then."""
    got: list[tuple[Mapping[str, str], dict[str, Any]]] = field(default_factory=list)
    url: str = ""
    hold: threading.Event | None = None
    """Answers only once it is set."""

    def take(self, headers: Mapping[str, str], body: bytes) -> int:
        if self.hold is not None:
            self.hold.wait(10)
        self.got.append((headers, json.loads(body)))
        return self.answers.pop(0) if self.answers else 200


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    with HttpServer(lambda request: (receiver.take(request.headers, request.body), b"")) as server:
        receiver.url = f"{server.url}/hook"
        yield receiver


def finding(
    rule: str = "nan", severity: str = "critical", rank: int | None = 1, value: float = 2.0
) -> Finding:
    return Finding(
        rule, severity, rank, 7, 3, "0", "Log.x.output.0", value, float("nan"), "2 NaN of 24 elements"
    )


def wait_for(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def opened(receiver: Receiver, **options: Any) -> tuple[Webhook, list[Event]]:
    events: list[Event] = []
    return Webhook(receiver.url, "run.zarr", observers=[events.append], first_pause_s=0.01, **options), events


def offer(webhook: Webhook, *findings: Finding) -> None:
    totals: dict[str, int] = {}
    for row in findings:
        totals[row.rule] = totals.get(row.rule, 0) + 1
    webhook.offer(findings, totals, {row.rule: row.severity for row in findings})


def test_a_message_arrives_with_the_findings_of_a_step(receiver: Receiver) -> None:
    webhook, events = opened(receiver)
    with webhook:
        offer(webhook, finding(), finding("missing", "warning", None))
    headers, body = receiver.got[0]
    assert headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers
    assert [alert["labels"]["rule"] for alert in body["alerts"]] == ["nan", "missing"]
    assert events == [Posted(2, 1)]


def test_an_incident_is_posted_once_for_many_steps_with_findings(receiver: Receiver, nan: Path) -> None:
    store = ingest.open_store(nan)
    webhook, events = opened(receiver, incidents=IncidentPosts(lambda: ingest.incidents(store)))
    with webhook:
        for step in (2, 3, 3):
            offer(webhook, replace(finding(), step=step))
    ((_, body),) = receiver.got
    assert body["alerts"][0]["labels"]["alertname"] == "DumpIngestIncident"
    assert events == [Posted(14, 1)]


def test_findings_are_posted_when_the_store_does_not_answer(receiver: Receiver) -> None:
    def silent() -> ingest.Incidents:
        message = "no answer"
        raise StoreSilent(message)

    webhook, _ = opened(receiver, incidents=IncidentPosts(silent))
    with webhook:
        offer(webhook, finding())
    ((_, body),) = receiver.got
    assert body["alerts"][0]["labels"]["alertname"] == "DumpIngestFinding"


@pytest.fixture(scope="module")
def nan(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one incident."""
    store = tmp_path_factory.mktemp("webhook") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store, rules=load_rules().enabled)
    return store


def test_a_message_that_is_refused_is_dropped_at_once(receiver: Receiver) -> None:
    receiver.answers = [400]
    webhook, events = opened(receiver)
    with webhook:
        offer(webhook, finding())
        wait_for(lambda: events)
    assert events == [PostDropped(1, "HTTP 400")]
    assert len(receiver.got) == 1


def test_offering_never_waits_and_what_does_not_fit_is_counted(receiver: Receiver) -> None:
    """The thread that commits is the one that offers."""
    receiver.hold = threading.Event()
    webhook, events = opened(receiver, queued=3)
    with webhook:
        started = time.monotonic()
        for _ in range(50):
            offer(webhook, finding())
        assert time.monotonic() - started < 1
        dropped = [event for event in events if isinstance(event, PostDropped)]
        assert 46 <= len(dropped) <= 47
        receiver.hold.set()
        wait_for(lambda: len(receiver.got) == 50 - len(dropped))
    assert len([event for event in events if isinstance(event, Posted)]) == 50 - len(dropped)


def test_the_token_comes_from_the_environment_and_goes_nowhere_else(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUMP_INGEST_WEBHOOK_TOKEN", SECRET)
    webhook, events = opened(receiver)
    with webhook:
        offer(webhook, finding())
    headers, body = receiver.got[0]
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in str(events) + str(webhook) + str(body)
    monkeypatch.setenv("DUMP_INGEST_WEBHOOK_TOKEN", f"{SECRET}\r\nX: y")
    webhook, events = opened(receiver)
    with webhook:
        offer(webhook, finding())
    assert isinstance(events[0], PostDropped)
    assert SECRET not in str(events)


@pytest.mark.parametrize("url", ["ftp://host/x", "host/x", "https://user:word@host/x", "http://"])
def test_a_url_with_credentials_or_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        Settings(webhook=url)
    with pytest.raises(UsageError) as raised:
        load(webhook=url)
    assert "word" not in raised.value.message
