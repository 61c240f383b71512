"""A bounded number of tasks is in flight, and none outlives its use."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from distributed import Client

from ingest.dispatch.runners import run_in_order
from ingest.dispatch.window import JobQueue, TaskMonitor, TaskWindow, batches
from ingest.dump_retention.retention import read_back_queue
from tests.fake_client import FakeClient, FakeFuture
from tests.servers.cluster import DaskCluster
from workers.errors import ClusterError, DumpIngestError
from workers.model import SourceFile, StepKey
from workers.store.model import StoreAddress
from workers.tasks.read_back import ReadBackJob


def task(name: str = "task") -> Any:
    """Return a task that ends when the test says so."""
    return FakeFuture(name, lambda: None, ())


def test_a_window_is_full_by_number_or_by_bytes() -> None:
    window: TaskWindow[str] = TaskWindow(2, 100, str)
    window.add(task(), "a", 60)
    assert window.has_room(40)
    assert not window.has_room(41)
    window.add(task(), "b", 10)
    assert not window.has_room(0)


def test_an_ended_task_is_returned_once_and_makes_room() -> None:
    window: TaskWindow[str] = TaskWindow(2, describe=str)
    first, second = task("first"), task("second")
    window.add(first, "a", 1)
    window.add(second, "b", 1)
    second.fail(ValueError())
    ((job, error),) = window.ended(None)
    assert job == "b"
    assert isinstance(error, DumpIngestError)
    assert window.ended(None) == []
    assert window.jobs == ["a"]
    assert window.has_room(1)


def test_a_dropped_job_is_cancelled_and_never_returned() -> None:
    window: TaskWindow[str] = TaskWindow(2, describe=str)
    first, second = task("first"), task("second")
    window.add(first, "a", 1)
    window.add(second, "b", 1)
    window.drop(lambda job: job == "a")
    assert first.status == "cancelled"
    assert window.ended(None) == []
    assert window.jobs == ["b"]


def test_tasks_of_a_lost_client_are_forgotten_and_their_jobs_returned() -> None:
    window: TaskWindow[str] = TaskWindow(2, 10, str)
    lost = task()
    window.add(lost, "a", 10)
    assert window.clear() == ["a"]
    lost.lose()
    assert window.ended(None) == []
    assert window.has_room(10)


KEY, OTHER = StepKey(0, 1), StepKey(1, 1)


def read_back(key: StepKey = KEY) -> ReadBackJob:
    address = StoreAddress("memory://store")
    return ReadBackJob(key, 0, "f" * 32, "/dump", address, (SourceFile("0.npy", 1, 0),))


def queue_of(connect: Callable[[], Any], inflight_nbytes: int = 10**9) -> JobQueue:
    return read_back_queue(connect, inflight_nbytes, {}, TaskMonitor())


def test_jobs_of_a_lost_client_are_submitted_again() -> None:
    clients: list[Any] = [FakeClient()]
    queue = queue_of(lambda: clients[-1])
    queue.waiting.append(read_back())
    queue.poll()
    clients.append(FakeClient())
    queue.poll()
    assert len(clients[1].pending) == 1


def test_nothing_is_lost_while_there_is_no_scheduler() -> None:
    client: Any = FakeClient()
    refusals = [ClusterError("no scheduler")]

    def connect() -> Any:
        if refusals:
            raise refusals.pop()
        return client

    queue = queue_of(connect)
    queue.waiting.append(read_back())
    with pytest.raises(ClusterError):
        queue.poll()
    queue.poll()
    assert len(client.pending) == 1


def test_jobs_of_a_dropped_step_are_cancelled_and_those_of_others_go_on() -> None:
    client: Any = FakeClient()
    queue = queue_of(lambda: client, inflight_nbytes=1)
    queue.waiting += [read_back(key) for key in (KEY, KEY, OTHER)]
    queue.poll()
    queue.drop(lambda job: job.key == KEY)
    assert [future.status for future in client.futures] == ["cancelled"]
    queue.poll()
    assert len(client.pending) == 1
    queue.drop()
    assert not queue.jobs
    assert not client.pending


def shared(*sizes: int) -> list[list[int]]:
    files = tuple(SourceFile(f"{number}.npy", size, 0) for number, size in enumerate(sizes))
    return [[file.size for file in batch] for batch in batches(files, 10, 3)]


def test_files_are_shared_among_jobs_by_size_and_number() -> None:
    assert shared(4, 4, 4) == [[4, 4], [4]]
    assert shared(99, 1) == [[99], [1]]
    assert shared(1, 1, 1, 1) == [[1, 1, 1], [1]]
    assert shared() == [[]]


class StandIn:
    """A client whose tasks run when their result is asked for, and that counts those in flight."""

    def __init__(self) -> None:
        self.submitted: list[Any] = []

    def submit(self, function: Callable[[Any], Any], job: Any, **options: Any) -> Future[Any]:
        assert not options["pure"]
        assert options["retries"] == 2
        future: Future[Any] = Future()
        self.submitted.append(future)
        try:
            future.set_result(function(job))
        except ZeroDivisionError as exc:
            future.set_exception(exc)
        return future


def test_results_come_in_order_a_bounded_number_ahead() -> None:
    client: Any = StandIn()
    results = run_in_order(client, str, range(10), ahead=3)
    assert next(results) == "0"
    assert len(client.submitted) == 4
    assert list(results) == list("123456789")


@pytest.mark.dask
def test_tasks_run_on_a_cluster(cluster: DaskCluster) -> None:
    with Client(cluster.address, set_as_default=False) as client:
        assert list(run_in_order(client, abs, range(-3, 3), ahead=2)) == [3, 2, 1, 0, 1, 2]
        window: TaskWindow[int] = TaskWindow(1, describe=str)
        future = client.submit(abs, -5, pure=False)
        window.add(future, -5, 1)
        future.result()
        ended: list[Any] = []
        while not ended:
            ended = window.ended(client)
        assert ended == [(-5, 5)]
