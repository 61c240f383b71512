"""A bounded number of tasks is in flight, and none outlives its use."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from distributed import Client

from ingest.dispatch.runners import run_in_order
from ingest.dispatch.window import TaskWindow
from tests.fake_client import FakeFuture
from tests.servers.cluster import DaskCluster
from workers.errors import DumpIngestError


def task(name: str = "task") -> Any:
    """Return a task that ends when the test says so."""
    return FakeFuture(name, lambda: None, ())


def test_a_window_is_full_by_number_or_by_bytes() -> None:
    window: TaskWindow[str] = TaskWindow(max_tasks=2, max_nbytes=100)
    window.add(task(), "a", 60)
    assert window.has_room(40)
    assert not window.has_room(41)
    window.add(task(), "b", 10)
    assert not window.has_room(0)


def test_an_ended_task_is_returned_once_and_makes_room() -> None:
    window: TaskWindow[str] = TaskWindow(max_tasks=2)
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
    window: TaskWindow[str] = TaskWindow(max_tasks=2)
    first, second = task("first"), task("second")
    window.add(first, "a", 1)
    window.add(second, "b", 1)
    window.drop(lambda job: job == "a")
    assert first.status == "cancelled"
    assert window.ended(None) == []
    assert window.jobs == ["b"]


def test_tasks_of_a_lost_client_are_forgotten_and_their_jobs_returned() -> None:
    window: TaskWindow[str] = TaskWindow(max_tasks=2, max_nbytes=10)
    lost = task()
    window.add(lost, "a", 10)
    assert window.clear() == ["a"]
    lost.lose()
    assert window.ended(None) == []
    assert window.has_room(10)


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
        window: TaskWindow[int] = TaskWindow(max_tasks=1)
        future = client.submit(abs, -5, pure=False)
        window.add(future, -5, 1)
        future.result()
        ended: list[Any] = []
        while not ended:
            ended = window.ended(client)
        assert ended == [(-5, 5)]
