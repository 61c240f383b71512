"""Content that is replaced in place, and when a store that was away is back."""

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.dispatch.clients import TaskClient
from ingest.service.offering import StoreProbe
from ingest.service.service import Service
from ingest.steps.events import ContentReplaced
from tests.services import Heard, ingest, observed_service
from tests.stores import MadeDump, npy_bytes, tensor_name
from workers.errors import ClusterError, DumpIngestError, StoreDenied, StoreUnavailable
from workers.model import StepKey

# Content that is replaced in place: noticed by times, by inodes, and by reading files again.


KEY = StepKey(0, 1)


@pytest.fixture
def target(filled: MadeDump) -> Path:
    """A file of a step, beside which nothing happens."""
    return filled.add(np.full(10, 3.0, "<f4"), tensor_name(slot=5), step=1)


@pytest.fixture(autouse=True)
def short_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories are listed again at every look, as they are after a minute."""
    monkeypatch.setattr("ingest.layouts.walk.TRUST_S", 0.0)


def replace_content(path: Path, value: float) -> None:
    """Write other values of the same size, and set the time back."""
    before = path.stat()
    path.write_bytes(npy_bytes(np.full(10, value, "<f4")))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def watching(made: MadeDump, store: Path, rate: float = 1e9) -> tuple[Service, Heard]:
    """Return a service that has nothing more to take."""
    running, heard = observed_service(made, store, retry_forever=True, recheck_rate=rate)
    until(running, lambda: bool(running.dump_state and not running.dump_state.pending))
    until(running, lambda: not running.submitter.offered_steps)
    return running, heard


def until(running: Service, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        look(running)


def look(running: Service) -> None:
    running.schedule.scan_soon()
    running.tick()


def maximum(store: Path) -> float:
    (tensor,) = (t for t in open_store(str(store)).tensors(rank=0, step=1) if t.slot == 5)
    return float(tensor.statistics.max)


@pytest.mark.timeout(60)
def test_replaced_content_is_reported_although_the_scheduler_is_lost_meanwhile(
    filled: MadeDump, store: Path, target: Path
) -> None:
    running, _ = watching(filled, store)
    rechecks = running.rechecks
    rechecks._next_at = math.inf
    look(running)
    rechecks._jobs.clear()
    replace_content(target, 8.0)
    until(running, lambda: bool(running.table.ensure(KEY).doubtful))
    rechecks._next_at = 0.0
    assert rechecks.poll(is_idle=True) == []  # reads the file
    connect, rechecks.connect = rechecks.connect, refusing
    rechecks._next_at, rechecks._round_at = 0.0, -math.inf
    assert [event.key for event in rechecks.poll(is_idle=True)] == [KEY]
    with pytest.raises(ClusterError):
        rechecks.poll(is_idle=True)
    rechecks.connect = connect
    assert rechecks.poll(is_idle=True) == []


def refusing() -> TaskClient:
    raise ClusterError("nobody there")


@pytest.mark.timeout(60)
def test_content_under_its_old_time_is_noticed_by_the_inode(
    filled: MadeDump, store: Path, target: Path
) -> None:
    """The rate is so low that nothing else is read: the step comes first."""
    running, heard = watching(filled, store, rate=1)
    running.rechecks._next_at = math.inf
    look(running)
    replace_content(target, 8.0)
    until(running, lambda: bool(running.table.ensure(KEY).doubtful))
    running.rechecks._next_at = 0.0
    until(running, lambda: maximum(store) == 8.0)
    (event,) = heard.of(ContentReplaced)
    assert (event.key, event.files) == (KEY, (str(target.relative_to(filled.root)),))
    generations = open_store(str(store)).step(0, 1).commit.record.generations
    assert len(generations) == 2
    assert ingest(filled, store).commits == []  # another process knows the generation by its name
    running.rechecks.rate, running.rechecks._next_at = 1e9, 0.0
    replace_content(target, 9.0)
    until(running, lambda: maximum(store) == 9.0)
    assert ingest(filled, store).commits == []


@pytest.mark.timeout(60)
def test_what_was_replaced_while_nobody_watched_is_found_by_reading_in_turn(
    filled: MadeDump, store: Path, target: Path
) -> None:
    ingest(filled, store)
    replace_content(target, 8.0)
    running, _ = watching(filled, store, rate=0)
    for _ in range(20):
        look(running)
    assert maximum(store) == 3.0
    running, heard = watching(filled, store)
    until(running, lambda: maximum(store) == 8.0)
    assert [event.key for event in heard.of(ContentReplaced)] == [KEY]


@pytest.mark.timeout(60)
def test_one_run_reads_everything_again_once_if_it_is_told_to(
    filled: MadeDump, store: Path, target: Path
) -> None:
    ingest(filled, store)
    replace_content(target, 8.0)
    report = ingest(filled, store)
    assert report.commits == []
    report = ingest(filled, store, recheck_rate=math.inf)
    assert [summary.key for summary in report.commits] == [KEY]
    assert maximum(store) == 8.0
    assert KEY not in report.unchanged
    report = ingest(filled, store, recheck_rate=math.inf)
    assert report.commits == []


# When a store that was away is back.


class Store:
    """Answers as it is told: with these, and then well."""

    def __init__(self, *answers: DumpIngestError | None) -> None:
        self.asked = 0
        self._answers: Iterator[DumpIngestError | None] = iter(answers)

    def __call__(self) -> None:
        self.asked += 1
        answer = next(self._answers, None)
        if answer is not None:
            raise answer


def ended(outage: StoreProbe) -> bool:
    """Wait for the thread that asks, and say whether it found an end."""
    assert outage._thread is not None
    outage._thread.join()
    return outage.poll_recovered()


@pytest.mark.timeout(10)
def test_a_store_that_comes_back_is_noticed_once() -> None:
    store = Store(StoreUnavailable("away"), StoreUnavailable("away"))
    outage = StoreProbe(store, pause_s=0.01)
    outage.report_failure(StoreUnavailable("a task failed"))
    outage.report_failure(StoreUnavailable("another one"))
    assert ended(outage)
    assert store.asked == 3
    assert not outage.poll_recovered()
    outage.pause_s = 5
    outage.report_failure(StoreUnavailable("and a late one"))
    assert not ended(outage)


@pytest.mark.timeout(10)
def test_a_store_that_refuses_is_not_asked_again() -> None:
    store = Store(StoreUnavailable("away"), StoreDenied("other credentials"))
    outage = StoreProbe(store, pause_s=0.01)
    outage.report_failure(StoreUnavailable("a task failed"))
    assert not ended(outage)
    assert store.asked == 2


@pytest.mark.timeout(10)
@pytest.mark.parametrize("error", [ClusterError("no scheduler"), StoreDenied("no")])
def test_other_errors_are_no_outage(error: DumpIngestError) -> None:
    store = Store()
    outage = StoreProbe(store, pause_s=0.01)
    outage.report_failure(error)
    time.sleep(0.05)
    assert store.asked == 0
