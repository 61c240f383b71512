"""Tasks on a cluster and in processes of this host."""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from ingest.dispatch.clients import ask, result_of, submit
from ingest.dispatch.processes import ProcessClient, ProcessFuture, ProcessWorkers, count_of_workers
from ingest.dispatch.runners import run_in_order
from ingest.dispatch.window import Task, TaskMonitor, TaskWindow, WorkerReplaced
from tests.hanging import HangingFiles
from workers.errors import ClusterError, WorkerDied
from workers.events import Event
from workers.host.resources import CpuLimits

# Tasks in processes of this host.


# Tasks in worker processes of this command.


@pytest.fixture(scope="module")
def client() -> Iterator[ProcessClient]:
    with ProcessWorkers(1) as workers:
        yield workers.connect()


def submit_to(client: ProcessClient, function: Any, *arguments: Any, priority: int = 0) -> ProcessFuture:
    return client.submit(function, *arguments, key=f"task-{time.monotonic_ns()}", priority=priority)


def wait_until(is_so: Any) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.timeout(180)
def test_results_and_errors_come_back(client: ProcessClient) -> None:
    heard = threading.Event()
    future = submit_to(client, divmod, 7, 2)
    future.add_done_callback(lambda _: heard.set())
    assert future.result(60) == (3, 1)
    assert heard.wait(60)
    assert future.status == "finished"
    failed = submit_to(client, divmod, 7, 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(60)
    assert "ZeroDivisionError" in str(result_of(failed, "rank 0 step 1"))


def _fail_until(lives: int, tries: Path) -> int:
    """Fail, then die, as often as there are lives; return the number of the try."""
    with tries.open("a") as file:
        file.write("x")
    number = tries.stat().st_size
    if number < lives:
        raise OSError(str(number))
    if number == lives:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.timeout(180)
def test_tasks_in_order_are_run_twice_more(client: ProcessClient, tmp_path: Path) -> None:
    """As on a Dask cluster: a worker that dies for lack of memory costs no command its work."""
    assert list(run_in_order(client, partial(_fail_until, 2), [tmp_path / "a"], ahead=1)) == [3]
    with pytest.raises(OSError, match="3"):
        list(run_in_order(client, partial(_fail_until, 9), [tmp_path / "c"], ahead=1))
    with pytest.raises(WorkerDied, match="every worker that took the task died") as died:
        list(run_in_order(client, partial(_fail_until, 3), [tmp_path / "d"], ahead=1))
    assert "without --scheduler and --workers" in died.value.hint


class _OfLibrary(Exception):
    """Can be pickled, but not unpickled: its constructor takes more than its text."""

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(f"{text}, code {code}")


def _fail_like_a_library() -> None:
    raise _OfLibrary("refused", code=7)


@pytest.mark.timeout(180)
def test_error_that_cannot_be_unpickled_comes_back_as_text(client: ProcessClient) -> None:
    failed = submit_to(client, _fail_like_a_library)
    with pytest.raises(RuntimeError, match="_OfLibrary: refused, code 7"):
        failed.result(20)
    assert submit_to(client, divmod, 7, 2).result(60) == (3, 1)


def _note(names: list[str], name: str, _: ProcessFuture) -> None:
    names.append(name)


@pytest.mark.timeout(180)
def test_tasks_of_a_higher_priority_run_first(client: ProcessClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    blocking = submit_to(client, Path.read_text, gate)
    done: list[str] = []
    futures = [
        submit_to(client, time.monotonic, priority=priority) for priority in (-10, 0)
    ]  # the first of them is a read-back
    for name, future in zip(("read-back", "convert"), futures, strict=True):
        future.add_done_callback(partial(_note, done, name))
    cancelled = submit_to(client, os._exit, 1)
    cancelled.cancel()
    gate.write_text("go on")
    assert blocking.result(60) == "go on"
    assert futures[0].result(60) > futures[1].result(60)
    assert done == ["convert", "read-back"]
    assert isinstance(result_of(cancelled, "rank 0 step 1"), ClusterError)


@pytest.mark.timeout(180)
def test_a_worker_that_dies_fails_its_task_and_is_replaced(client: ProcessClient) -> None:
    pid = submit_to(client, os.getpid).result(60)
    future = submit_to(client, os.kill, pid, signal.SIGKILL)
    wait_until(lambda: future.status != "pending")
    error = result_of(future, "rank 3 step 40")
    assert isinstance(error, WorkerDied)
    assert error.message == "rank 3 step 40: the worker that took the task died (SIGKILL)"
    assert submit_to(client, os.getpid).result(60) != pid


@pytest.mark.timeout(180)
def test_a_worker_that_does_not_come_to_an_end_is_replaced(client: ProcessClient) -> None:
    events: list[Event] = []
    monitor = TaskMonitor(timeout_s=0.5, young_s=0.1, pause_s=0.1, notify=events.append)
    pid = submit_to(client, os.getpid).result(60)
    future = submit_to(client, time.sleep, 3600)
    task = Task(7, "rank 0 step 7", 0, future, time.monotonic() - 10)
    monitor.add(task)
    answer = ask(client, [future.key, "unknown"])
    assert answer is not None
    assert answer.states == {future.key: "processing", "unknown": None}
    given_up: list[Any] = []

    def is_given_up() -> bool:
        given_up.extend(monitor.check(client, [task]))
        return bool(given_up)

    wait_until(is_given_up)
    ((_, error),) = given_up
    assert isinstance(error, WorkerDied)
    assert "did not come to an end on worker 0" in error.message
    assert [type(event) for event in events] == [WorkerReplaced]
    future.cancel()
    assert submit_to(client, os.getpid).result(60) != pid


# The worker processes of a command.


@pytest.mark.timeout(180)
def test_there_is_a_worker_for_each_processor_unless_somebody_chooses() -> None:
    assert count_of_workers(3) == 3
    assert count_of_workers(None) == min(len(os.sched_getaffinity(0)), 8)


@pytest.mark.timeout(180)
def test_the_same_client_is_given_until_the_processes_end() -> None:
    """And workers that end before they are ready are an error and not a loop."""

    def refuse() -> Any:
        raise OSError("no more processes")

    with ProcessWorkers(1, CpuLimits()) as workers:
        own = workers.connect()
        assert workers.connect() is own
        own._start = refuse
        pid = own.submit(os.getpid, key="pid").result(60)
        assert Path(f"/proc/{pid}").exists()
        os.kill(pid, signal.SIGKILL)
        pending = own.submit(os.getpid, key="pending")
        wait_until(lambda: pending.status != "pending")
        wait_until(lambda: own.status == "closed")
        with pytest.raises(ClusterError, match="ended before they were ready"):
            workers.connect()
        assert workers.connect().submit(os.getpid, key="again").result(60) != pid


# Tasks that take long on the workers of a Dask cluster.


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    # By default, Dask closes the nanny of a worker for good whose next process is not there after 15 s.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        yield cluster


@pytest.fixture
def dask_client(local: LocalCluster) -> Iterator[Client]:
    with Client(local, set_as_default=False) as dask_client:
        yield dask_client


def _task(monitor: TaskMonitor, dask_client: Client, seconds: float) -> Task[int]:
    future = dask_client.submit(time.sleep, seconds, pure=False)
    task = Task(7, "rank 0 step 7", 0, future, time.monotonic())
    monitor.add(task)
    return task


def _pid(dask_client: Client) -> int:
    return int(dask_client.submit(os.getpid, pure=False).result(timeout=60))


def _monitored(monitor: TaskMonitor, dask_client: Client, task: Task[int]) -> ClusterError:
    """Look after a task until it is given up; return why."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for _, error in monitor.check(dask_client, [task]):
            return error
        time.sleep(0.1)
    raise AssertionError("nothing was given up")


@pytest.mark.dask
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_reads_a_file_that_hangs_is_replaced(
    dask_client: Client, tmp_path: Path, make_hanging: Callable[[Callable[[], None]], HangingFiles]
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
    before = _pid(dask_client)
    window.add(dask_client.submit(Path.read_bytes, tmp_path / "file", pure=False), "a", 1)
    assert hangs.wait(60)
    until, ended = time.monotonic() + 60, window.ended(dask_client)
    while not ended and time.monotonic() < until:
        time.sleep(0.1)
        ended = window.ended(dask_client)
    ((job, error),) = ended
    assert (job, type(error)) == ("a", WorkerDied)
    assert error.message.startswith("file a: a task did not come to an end on tcp://127.0.0.1:")
    assert window.has_room(1)
    assert _pid(dask_client) != before


@pytest.mark.dask
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_the_scheduler_has_forgotten_is_given_up(
    local: LocalCluster, dask_client: Client
) -> None:
    monitor = TaskMonitor(timeout_s=60, young_s=0.1, pause_s=0.1)
    task = _task(monitor, dask_client, 0.0)
    task.future.result(timeout=60)
    future: Any = task.future
    state = future._state
    state.status = "pending"  # nobody tells the client
    scheduler: Any = local.scheduler
    scheduler.tasks.pop(task.future.key)
    error = _monitored(monitor, dask_client, task)
    assert type(error) is ClusterError
    assert "does not know the task any more" in error.message


@pytest.mark.dask
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_task_for_a_client_that_was_just_closed_is_cancelled(local: LocalCluster) -> None:
    """Dask raises an error for it, and cancels what was submitted a moment earlier."""
    with Client(local, set_as_default=False) as dask_client:
        before = submit(dask_client, len, b"", key="before", resources={"none": 1})
    after = submit(dask_client, len, b"", key="after", resources=None)
    ended: queue.SimpleQueue[object] = queue.SimpleQueue()
    after.add_done_callback(ended.put)
    assert ended.get(timeout=10) is after
    assert (before.status, after.status) == ("cancelled", "cancelled")
    assert isinstance(result_of(after, "rank 0 step 7"), ClusterError)


@pytest.mark.dask
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_is_at_work_is_left_alone(dask_client: Client) -> None:
    monitor = TaskMonitor(timeout_s=30, young_s=0.1, pause_s=0.1)
    task = _task(monitor, dask_client, 1.5)
    while task.future.status == "pending":
        assert monitor.check(dask_client, [task]) == []
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


@pytest.mark.dask
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
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


@pytest.mark.dask
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_waits_for_one_whose_client_has_gone_is_not_left_alone(
    local: LocalCluster, dask_client: Client
) -> None:
    """As after a restart of the watcher: the scheduler takes its worker for free."""
    with Client(local, set_as_default=False) as gone:
        before = _pid(gone)
        gone.submit(time.sleep, 3600, pure=False)
        time.sleep(0.5)
    monitor = TaskMonitor(timeout_s=1.0, young_s=0.2, pause_s=0.2)
    task = _task(monitor, dask_client, 0.0)
    error = _monitored(monitor, dask_client, task)
    assert isinstance(error, WorkerDied)
    task.future.result(timeout=60)
    assert _pid(dask_client) != before


@pytest.mark.dask
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_scheduler_that_does_not_answer_is_told_every_two_minutes() -> None:
    now = [0.0]
    monitor = TaskMonitor(clock=lambda: now[0], young_s=0.0, pause_s=0.0)
    future = SimpleNamespace(key="a", status="pending")
    task: Any = SimpleNamespace(name="a", nbytes=0, future=future, submitted_at=0.0)
    monitor.add(task)

    def look(at: float, dask_client: Any) -> None:
        now[0] = at
        assert monitor.check(dask_client, [task]) == []
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
