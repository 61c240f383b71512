"""Tasks that take long on the workers of a Dask cluster."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from ingest.dispatch.clients import result_of, submit
from ingest.dispatch.window import Task, TaskMonitor, TaskWindow
from tests.hanging import HangingFiles
from workers.errors import ClusterError, WorkerDied

pytestmark = [
    pytest.mark.dask,
    pytest.mark.timeout(180),
    # Dask leaves it to the garbage collector to close the socket by which it looks for its address.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    # By default, Dask closes the nanny of a worker for good whose next process is not there after 15 s.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        yield cluster


@pytest.fixture
def client(local: LocalCluster) -> Iterator[Client]:
    with Client(local, set_as_default=False) as client:
        yield client


def _task(monitor: TaskMonitor, client: Client, seconds: float) -> Task[int]:
    future = client.submit(time.sleep, seconds, pure=False)
    task = Task(7, "rank 0 step 7", 0, future, time.monotonic())
    monitor.add(task)
    return task


def _pid(client: Client) -> int:
    return int(client.submit(os.getpid, pure=False).result(timeout=60))


def _monitored(monitor: TaskMonitor, client: Client, task: Task[int]) -> ClusterError:
    """Look after a task until it is given up; return why."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for _, error in monitor.check(client, [task]):
            return error
        time.sleep(0.1)
    raise AssertionError("nothing was given up")


def test_a_worker_that_reads_a_file_that_hangs_is_replaced(
    client: Client, tmp_path: Path, make_hanging: Callable[[Callable[[], None]], HangingFiles]
) -> None:
    """It is in uninterruptible sleep within the kernel, and all the rest of it goes on.

    In a window: what reads committed files again must not wait for ever, either.
    """
    hangs = threading.Event()
    hanging = make_hanging(hangs.set)
    (tmp_path / "file").write_bytes(b"bytes")
    hanging.add(tmp_path / "file")
    monitor = TaskMonitor(timeout_s=0.5, young_s=0.2, pause_s=0.2)
    window: TaskWindow[str] = TaskWindow(1, describe=lambda job: f"file {job}", monitor=monitor)
    before = _pid(client)
    window.add(client.submit(Path.read_bytes, tmp_path / "file", pure=False), "a", 1)
    assert hangs.wait(60)
    until, ended = time.monotonic() + 60, window.ended(client)
    while not ended and time.monotonic() < until:
        time.sleep(0.1)
        ended = window.ended(client)
    ((job, error),) = ended
    assert (job, type(error)) == ("a", WorkerDied)
    assert error.message.startswith("file a: a task did not come to an end on tcp://127.0.0.1:")
    assert window.has_room(1)
    assert _pid(client) != before


def test_a_task_that_the_scheduler_has_forgotten_is_given_up(local: LocalCluster, client: Client) -> None:
    monitor = TaskMonitor(timeout_s=60, young_s=0.1, pause_s=0.1)
    task = _task(monitor, client, 0.0)
    task.future.result(timeout=60)
    future: Any = task.future
    state = future._state
    state.status = "pending"  # nobody tells the client
    scheduler: Any = local.scheduler
    scheduler.tasks.pop(task.future.key)
    error = _monitored(monitor, client, task)
    assert type(error) is ClusterError
    assert "does not know the task any more" in error.message


def test_a_task_for_a_client_that_was_just_closed_is_cancelled(local: LocalCluster) -> None:
    """Dask raises an error for it, and cancels what was submitted a moment earlier."""
    with Client(local, set_as_default=False) as client:
        before = submit(client, len, b"", key="before", resources={"none": 1})
    after = submit(client, len, b"", key="after", resources=None)
    ended: queue.SimpleQueue[object] = queue.SimpleQueue()
    after.add_done_callback(ended.put)
    assert ended.get(timeout=10) is after
    assert (before.status, after.status) == ("cancelled", "cancelled")
    assert isinstance(result_of(after, "rank 0 step 7"), ClusterError)


def test_a_task_that_is_at_work_is_left_alone(client: Client) -> None:
    monitor = TaskMonitor(timeout_s=30, young_s=0.1, pause_s=0.1)
    task = _task(monitor, client, 1.5)
    while task.future.status == "pending":
        assert monitor.check(client, [task]) == []
        time.sleep(0.05)
    assert task.future.status == "finished"


class _Answering:
    """A client of a scheduler with one worker, to whom time means nothing."""

    scheduler = SimpleNamespace(get_task_status="status", processing="processing", proxy="proxy")

    def __init__(self, *keys: str) -> None:
        self.keys, self.at_work = keys, keys[0]
        self.replaced: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()

    def sync(self, question: str, **_: object) -> object:
        match question:
            case "status":
                return dict.fromkeys(self.keys, "processing")
            case "processing":
                return {"worker": list(self.keys)}
        return {self.at_work: ["frames"]}

    def restart_workers(self, workers: Sequence[str], **_: object) -> None:
        self.replaced.put(workers)


@pytest.mark.parametrize("last", ["overtaking 19", "of nobody here"])
def test_a_task_that_others_overtake_is_left_alone(last: str) -> None:
    """A worker is given more tasks than it has threads; conversions go before what is read back.

    The one that keeps it busy at last does not come to an end: another task of the service, or of a client
    that has gone.
    """
    names = ["overtaken", *(f"overtaking {number}" for number in range(20))]
    answering: Any = _Answering(*names)
    now = [0.0]
    monitor = TaskMonitor(timeout_s=100.0, clock=lambda: now[0])
    in_flight = [SimpleNamespace(name=name, nbytes=0, future=SimpleNamespace(key=name)) for name in names]
    tasks: list[Any] = [SimpleNamespace(**vars(task), submitted_at=0.0) for task in in_flight]
    for task in tasks:
        monitor.add(task)

    def given_up(at_work: str) -> list[str]:
        answering.at_work = at_work
        now[0] += 50.0
        monitor.check(answering, tasks)
        if monitor._thread is not None:
            monitor._thread.join()
        return [task.name for task, _ in monitor.check(answering, tasks)]

    assert [given_up(name) for name in names[1:]] == [[]] * 20
    outcomes = [given_up(last) for _ in range(3)]
    assert answering.replaced.get(timeout=10) == ["worker"]
    assert answering.replaced.empty(), "once is enough for all tasks that it has"
    assert outcomes[0] == []
    # Those that wait for another task of the service are not judged: it is.
    assert outcomes[-1] == ([last] if last in names else names)


def test_a_task_that_waits_for_one_whose_client_has_gone_is_not_left_alone(
    local: LocalCluster, client: Client
) -> None:
    """As after a restart of the watcher: the scheduler takes its worker for free."""
    with Client(local, set_as_default=False) as gone:
        before = _pid(gone)
        gone.submit(time.sleep, 3600, pure=False)
        time.sleep(0.5)
    monitor = TaskMonitor(timeout_s=1.0, young_s=0.2, pause_s=0.2)
    task = _task(monitor, client, 0.0)
    error = _monitored(monitor, client, task)
    assert isinstance(error, WorkerDied)
    task.future.result(timeout=60)
    assert _pid(client) != before


def test_a_scheduler_that_does_not_answer_is_told_every_two_minutes() -> None:
    now = [0.0]
    monitor = TaskMonitor(clock=lambda: now[0], young_s=0.0, pause_s=0.0)
    future = SimpleNamespace(key="a", status="pending")
    task: Any = SimpleNamespace(name="a", nbytes=0, future=future, submitted_at=0.0)
    monitor.add(task)

    def look(at: float, client: Any) -> None:
        now[0] = at
        assert monitor.check(client, [task]) == []
        for thread in threading.enumerate():
            if thread.name == "dump-ingest-tasks":
                thread.join()

    silent = SimpleNamespace(scheduler=None)  # whatever is asked fails
    for at in (10.0, 100.0):
        look(at, silent)
        monitor.require_answer()
    look(140.0, silent)
    with pytest.raises(ClusterError, match="has not answered for 130 s") as told:
        monitor.require_answer()
    assert "restart it" in told.value.hint
    look(200.0, silent)
    monitor.require_answer()
    look(261.0, silent)
    with pytest.raises(ClusterError, match="251 s"):
        monitor.require_answer()
    scheduler = SimpleNamespace(get_task_status="status", processing="processing")
    answers = {"status": {"a": "processing"}, "processing": {}}
    look(400.0, SimpleNamespace(scheduler=scheduler, sync=lambda what, **_: answers[what]))
    monitor.require_answer()
