"""Messages to a webhook: they arrive also when the receiver was away, and nobody waits for them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import ingest
from ingest.reporting.webhook import IncidentPosts, PostDropped, Posted, Webhook
from ingest.settings import Settings, load
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from tests.servers.http import HttpServer
from workers.errors import StoreSilent, UsageError
from workers.events import Event
from workers.rules.schema import load_rules
from workers.store.model import Finding

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
