"""The watchers of a page: addresses, one question for all viewers, and what belongs to a store."""

import threading
from dataclasses import replace

import pytest

from ingest.page.watchers import Watchers, addresses_of, parse_addresses
from ingest.service.live_watcher import DumpDisk, LiveWatcher, RankProgress
from ingest.steps.decide import StepRow
from workers.errors import UsageError

URL = "http://node1:9108"
WATCHER = LiveWatcher(
    URL,
    store="s3://bucket/run.zarr",
    ranks=(RankProgress("0", 3.2, 4, 3, 0, 1, 2, 100),),
    disk=DumpDisk(10**9, 10**10, under_pressure=False),
    steps=(StepRow(0, 4, "waiting", "its files still change"),),
)


@pytest.mark.parametrize(
    "words", ["node1", "node1:", "node1:99999", "ftp://a:1", "u:p@host:1", "a:1/steps", "[x]:1"]
)
def test_what_is_not_an_address_is_refused_with_the_remedy(words: str) -> None:
    with pytest.raises(UsageError, match="is not an address") as refused:
        parse_addresses(words)
    assert "node1:9108" in refused.value.hint


def test_a_name_with_several_addresses_is_as_many_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, list[str]] = {"many": ["10.0.0.2", "10.0.0.1"], "one": ["10.0.0.1"]}

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise OSError
        return [(2, 1, 6, "", (address, port)) for address in known[host]]

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    assert addresses_of("http://many:9108") == ["http://10.0.0.1:9108", "http://10.0.0.2:9108"]
    assert addresses_of("http://one:9108") == ["http://one:9108"]
    assert addresses_of("http://gone:9108") == ["http://gone:9108"]


def test_watchers_are_asked_once_for_all_viewers_and_again_when_the_answers_are_old() -> None:
    asked = threading.Semaphore(0)
    now = [0.0]

    def ask(url: str, _: float) -> LiveWatcher:
        asked.release()
        return replace(WATCHER, url=url)

    watchers = Watchers(("http://127.0.0.1:1", "http://127.0.0.1:2"), 5, ask, lambda: now[0])
    for _ in range(20):
        assert len(watchers.of_store(WATCHER.store).watchers) == 2
    assert [asked.acquire(timeout=0) for _ in range(3)] == [True, True, False]
    now[0] = 5.0
    watchers.of_store(WATCHER.store)
    assert [asked.acquire(timeout=30) for _ in range(2)] == [True, True]
