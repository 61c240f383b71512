"""Read-backs as tasks: how a step is cut, what is in flight, and what is lost with a client."""

from typing import Any, cast

import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

from ingest.dump_retention.read_backs import JOB_NBYTES, ReadBacks, jobs_of
from tests.fake_client import FakeClient
from workers.errors import ClusterError
from workers.model import SourceFile, StepKey
from workers.store.model import StoreAddress
from workers.tasks.read_back import ReadBackJob

KEY = StepKey(0, 1)
STORE = StoreAddress("/store")


def cut(*sizes: int, key: StepKey = KEY) -> list[ReadBackJob]:
    files = tuple(SourceFile(f"{number}", size, 1) for number, size in enumerate(sizes))
    return list(jobs_of(key, "a" * 32, "/dump", STORE, files))


@given(st.lists(st.integers(0, 2 * JOB_NBYTES), min_size=1, max_size=40))
def test_a_step_is_cut_into_jobs_that_have_every_file_once(sizes: list[int]) -> None:
    jobs = cut(*sizes)
    assert [file.size for job in jobs for file in job.files] == sizes
    assert [job.number for job in jobs] == list(range(len(jobs)))
    assert all(job.nbytes <= JOB_NBYTES or len(job.files) == 1 for job in jobs)


def test_names_of_files_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.dump_retention.read_backs.JOB_FILES", 3)
    assert [len(job.files) for job in cut(*[1] * 8)] == [3, 3, 2]


class Bench:
    """Read-backs whose tasks fail, because there is no dump: each time another client may be there."""

    def __init__(self, inflight_nbytes: int) -> None:
        self.client = FakeClient()
        self.read_backs = ReadBacks(lambda: cast("Client", self.client), inflight_nbytes)

    def finish(self) -> list[Any]:
        """Have every task in flight fail, and return what came of them."""
        for future in self.client.pending:
            future.fail(ClusterError("no"))
        return [(job, type(error)) for job, error in self.read_backs.poll()]


def test_bytes_and_tasks_in_flight_are_bounded() -> None:
    bench = Bench(inflight_nbytes=25)
    for step in range(12):
        for job in cut(10, key=StepKey(0, step)):
            bench.read_backs.offer(job)
    assert not bench.read_backs.has_room
    assert bench.read_backs.poll() == []
    assert len(bench.client.pending) == 2
    assert [kind for _, kind in bench.finish()] == [ClusterError] * 2

    many = Bench(inflight_nbytes=10**9)
    for job in (job for step in range(12) for job in cut(10, key=StepKey(0, step))):
        many.read_backs.offer(job)
    many.read_backs.poll()
    assert len(many.client.pending) == 8


def test_what_was_in_flight_with_a_lost_client_is_submitted_to_the_next() -> None:
    bench = Bench(inflight_nbytes=10**9)
    (job,) = cut(10)
    bench.read_backs.offer(job)
    bench.read_backs.poll()
    bench.client = FakeClient()
    assert bench.read_backs.poll() == []
    assert len(bench.client.pending) == 1
    assert bench.finish() == [(job, ClusterError)]


def test_jobs_of_a_step_that_is_dropped_come_to_nothing() -> None:
    bench = Bench(inflight_nbytes=1)
    for job in (*cut(10), *cut(10, key=StepKey(0, 2))):
        bench.read_backs.offer(job)
    bench.read_backs.poll()
    bench.read_backs.drop(KEY)
    assert bench.finish() == []
    bench.read_backs.cancel()
    assert bench.finish() == []
    assert bench.read_backs.has_room
