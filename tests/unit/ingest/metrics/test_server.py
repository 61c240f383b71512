"""Serving metrics, and scrapes: a process that ends has its last metrics scraped, if anybody scrapes."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry, Counter

from ingest.consolidating.consolidator import StepsConsolidated
from ingest.metrics import Scrapes, serve, server
from tests.servers.process import free_port, http_get, scrape
from workers.errors import UsageError
from workers.host.heartbeat import beat


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scrapes(clock: Clock) -> Scrapes:
    """Of a process that is scraped every ten seconds."""
    made = Scrapes(clock)
    for _ in range(3):
        clock.time += 10
        made.record(clock())
    return made


@contextmanager
def waiting(scrapes: Scrapes, *, has_news: bool = False) -> Iterator[threading.Thread]:
    """Wait in a thread."""
    thread = threading.Thread(target=scrapes.wait_for_last, args=(3600.0,), kwargs={"has_news": has_news})
    thread.start()
    yield thread
    thread.join(30)
    assert not thread.is_alive()


def test_what_nobody_scrapes_is_not_waited_for(clock: Clock) -> None:
    Scrapes(clock).wait_for_last(3600, has_news=True)


def test_news_wait_for_the_next_scrape(scrapes: Scrapes, clock: Clock) -> None:
    clock.time += 1
    scrapes.observe(StepsConsolidated(appended=(7,)))
    with waiting(scrapes) as thread:
        thread.join(0.05)
        assert thread.is_alive()
        scrapes.record(clock() - 0.5)  # its answer was made before
        thread.join(0.05)
        assert thread.is_alive()
        clock.time += 9
        scrapes.record(clock())
    scrapes.wait_for_last(3600)


def test_two_servers_that_scrape_do_not_make_it_impatient(scrapes: Scrapes, clock: Clock) -> None:
    clock.time += 1
    scrapes.record(clock())
    clock.time += 8
    with waiting(scrapes, has_news=True) as thread:
        thread.join(0.05)
        assert thread.is_alive()
        clock.time += 1
        scrapes.record(clock())


def test_a_probe_is_not_a_scrape(registry: CollectorRegistry) -> None:
    """Whether it is one, a header tells; it counts when its answer was sent."""
    Counter("things", "Things.", registry=registry)
    scrapes, port = Scrapes(), free_port()
    stop = serve(registry, f"127.0.0.1:{port}", scrapes=scrapes)
    try:
        http_get(port, "/metrics")
        scrapes.wait_for_last(3600, has_news=True)
        for _ in range(2):
            assert "things_total 0.0" in scrape(port)
        with waiting(scrapes, has_news=True):
            scrape(port)
    finally:
        stop()


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "256.0.0.1:9108"])
def test_an_address_that_cannot_be_served_is_refused(registry: CollectorRegistry, address: str) -> None:
    with pytest.raises(UsageError, match="cannot serve"):
        serve(registry, address)


def test_says_whether_the_process_is_ready(registry: CollectorRegistry) -> None:
    reason = [""]
    port = free_port()
    stop = serve(registry, f"127.0.0.1:{port}", unready=lambda: reason[0])
    try:
        assert http_get(port, "/ready") == (200, b"ready\n")
        reason[0] = "nothing of the dump can be read"
        assert http_get(port, "/ready") == (503, b"nothing of the dump can be read\n")
    finally:
        stop()


def test_says_whether_the_process_hangs(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    stop = serve(registry, f"127.0.0.1:{port}")
    try:
        beat()
        assert http_get(port, "/live") == (200, b"live\n")
        last = time.time() - server.STALE_S - 60
        monkeypatch.setattr(server, "last_beat", lambda: last)
        status, reason = http_get(port, "/live")
        assert status == 503
        assert reason.startswith(b"hangs: it has made no progress for 66")
    finally:
        stop()


@pytest.mark.parametrize("path", ["/health", "/healthz", "/reday"])
def test_a_probe_of_a_path_that_does_not_exist_fails(registry: CollectorRegistry, path: str) -> None:
    """The metrics as an answer would make such a probe succeed for ever."""
    port = free_port()
    stop = serve(registry, f"127.0.0.1:{port}", {"/steps": bytes})
    try:
        assert http_get(port, path) == (404, b"served here: /live, /metrics, /ready, /steps\n")
        assert http_get(port, "/")[1].startswith(b"# HELP")
    finally:
        stop()
