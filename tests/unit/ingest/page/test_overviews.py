"""When the runs of a list are read."""

import threading
import time

import pytest

from ingest.page.overview import Overview
from ingest.page.overviews import Overviews


class Runs:
    """Counts how often each run is read; each reading takes this long by the clock, once the gate is open."""

    def __init__(self, took_s: float = 0) -> None:
        self.read: list[str] = []
        self.now = 100.0
        self.took_s = took_s
        self.gate = threading.Event()
        self.gate.set()
        self.overviews = Overviews(self.look, refresh_s=5, clock=lambda: self.now)

    def look(self, name: str) -> Overview:
        self.gate.wait(60)
        self.now += self.took_s
        self.read.append(name)
        return Overview(last_step=len(self.read))

    def wait(self) -> None:
        assert self.overviews._done is not None
        assert self.overviews._done.wait(60)


def test_nobody_waits_long_for_runs_that_are_read_for_the_first_time() -> None:
    runs = Runs()
    runs.gate.clear()
    begun = time.monotonic()
    listed = runs.overviews.moment(["a", "b"], 0.05)
    assert time.monotonic() - begun < 30
    assert (dict(listed.runs), listed.is_complete) == ({"a": None, "b": None}, False)
    runs.gate.set()
    runs.wait()
    assert runs.overviews.moment(["a", "b"], 60).is_complete


def test_a_reading_that_breaks_off_does_not_end_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: raised.set())
    runs = Runs()

    def fail(_: str) -> Overview:
        raise MemoryError

    runs.overviews.read = fail
    assert not runs.overviews.moment(["a"], 60).is_complete
    assert raised.wait(60)
    runs.overviews.read = runs.look
    assert runs.overviews.moment(["a"], 60).is_complete


def test_many_viewers_read_the_runs_once_and_new_runs_at_once() -> None:
    runs = Runs()
    first = runs.overviews.moment(["a"], 60)
    assert [runs.overviews.moment(["a"], 60).token for _ in range(3)] == [first.token] * 3
    runs.now += 6
    runs.overviews.moment(["a"], 60)
    runs.wait()
    assert runs.read == ["a", "a"]
    assert runs.overviews.moment(["a"], 60).token != first.token
    assert runs.overviews.moment(["a", "b"], 60).is_complete
    assert sorted(runs.read) == ["a", "a", "a", "b"]


def test_a_list_that_takes_long_is_read_less_often() -> None:
    runs = Runs(took_s=2)
    runs.overviews.moment(["a"], 60)
    for later_s, read in ((6, 1), (15, 2)):
        runs.now += later_s
        runs.overviews.moment(["a"], 60)
        runs.wait()
        assert len(runs.read) == read
