"""A bounded number of tasks is in flight, and none outlives its use."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from distributed import Client

from ingest.dispatch.runners import run_in_order
from ingest.dispatch.window import TaskWindow, batches
from tests.fake_client import FakeFuture
from tests.servers.cluster import DaskCluster
from workers.model import SourceFile, StepKey


def task(name: str = "task") -> Any:
    """Return a task that ends when the test says so."""
    return FakeFuture(name, lambda: None, ())


KEY, OTHER = StepKey(0, 1), StepKey(1, 1)


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
