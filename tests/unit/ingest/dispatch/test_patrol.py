"""Tasks that take long, on workers that we start ourselves."""

import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest
from distributed import Client

from ingest.dispatch.own_cluster import OwnCluster
from ingest.dispatch.own_workers import end_workers, start_workers
from ingest.dispatch.parts import InflightTask, OfferedStep, TaskPart
from ingest.dispatch.patrol import Patrol
from workers.errors import ClusterError, WorkerDied

if TYPE_CHECKING:
    from distributed import SpecCluster

pytestmark = [
    pytest.mark.dask,
    pytest.mark.timeout(180),
    # Dask leaves it to the garbage collector to close the socket by which it looks for its address.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture(scope="module")
def local() -> Iterator["SpecCluster"]:
    own = start_workers(lambda: OwnCluster(1, {}))
    yield own.cluster
    own.close()


@pytest.fixture
def client(local: "SpecCluster") -> Iterator[Client]:
    with Client(local, set_as_default=False) as client:
        yield client


class _Plan:
    key = "rank 0 step 7"


def _task(client: Client, seconds: float) -> InflightTask:
    step = cast("OfferedStep", type("Step", (), {"plan": _Plan()}))
    future = client.submit(time.sleep, seconds, pure=False)
    return InflightTask([TaskPart(step, 0, 0)], 0, future, time.monotonic())


def _pid(client: Client) -> int:
    return int(client.submit(os.getpid, pure=False).result(timeout=60))


def _patrolled(patrol: Patrol, client: Client, task: InflightTask) -> ClusterError:
    """Look after a task until it is given up; return why."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for _, error in patrol.look(client, [task]):
            return error
        time.sleep(0.1)
    raise AssertionError("nothing was given up")


def test_a_worker_does_not_hear_the_interrupt_of_the_terminal(client: Client) -> None:
    pid = _pid(client)
    os.kill(pid, signal.SIGINT)
    assert _pid(client) == pid


def test_a_worker_that_does_not_come_to_an_end_is_replaced(client: Client) -> None:
    """As when it reads a file in a file system that has gone: its heartbeat is fine."""
    before = _pid(client)
    patrol = Patrol(timeout_s=1.0, young_s=0.2, pause_s=0.2)
    task = _task(client, 3600)
    error = _patrolled(patrol, client, task)
    task.future.cancel()
    assert isinstance(error, WorkerDied)
    assert "rank 0 step 7: a task did not come to an end on tls://127.0.0.1:" in error.message
    (replaced,) = patrol.take_replaced()
    assert replaced.seconds >= 1.0
    assert _pid(client) != before


def test_a_task_that_the_scheduler_has_forgotten_is_given_up(local: "SpecCluster", client: Client) -> None:
    task = _task(client, 0.0)
    task.future.result(timeout=60)
    state: Any = task.future._state
    state.status = "pending"  # nobody tells the client
    scheduler: Any = local.scheduler
    scheduler.tasks.pop(task.future.key)
    error = _patrolled(Patrol(timeout_s=60, young_s=0.1, pause_s=0.1), client, task)
    assert type(error) is ClusterError
    assert "does not know the task any more" in error.message


def test_a_task_that_is_at_work_is_left_alone(client: Client) -> None:
    patrol = Patrol(timeout_s=30, young_s=0.1, pause_s=0.1)
    task = _task(client, 1.5)
    while task.future.status == "pending":
        assert patrol.look(client, [task]) == []
        time.sleep(0.05)
    assert task.future.status == "finished"


def test_workers_end_although_they_are_at_work(local: "SpecCluster") -> None:
    """Last: the cluster is of no use after it."""
    with Client(local, set_as_default=False) as client:
        pid = _pid(client)
        client.submit(time.sleep, 3600, pure=False)
    started = time.monotonic()
    end_workers(local)
    assert time.monotonic() - started < 30
    until = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:  # noqa: PTH110
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{pid}")  # noqa: PTH110
