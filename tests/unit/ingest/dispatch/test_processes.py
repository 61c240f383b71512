"""Tasks in processes of this host."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingest.dispatch.clients import ask, result_of
from ingest.dispatch.processes import ProcessClient, ProcessFuture, ProcessWorkers, count_of_workers
from ingest.dispatch.runners import run_in_order
from ingest.dispatch.window import Task, TaskMonitor, WorkerReplaced
from workers.errors import ClusterError, WorkerDied
from workers.events import Event
from workers.host.resources import CpuLimits

# Tasks in worker processes of this command.


pytestmark = pytest.mark.timeout(180)


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


def test_error_that_cannot_be_unpickled_comes_back_as_text(client: ProcessClient) -> None:
    failed = submit_to(client, _fail_like_a_library)
    with pytest.raises(RuntimeError, match="_OfLibrary: refused, code 7"):
        failed.result(20)
    assert submit_to(client, divmod, 7, 2).result(60) == (3, 1)


def _note(names: list[str], name: str, _: ProcessFuture) -> None:
    names.append(name)


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


def test_a_worker_that_dies_fails_its_task_and_is_replaced(client: ProcessClient) -> None:
    pid = submit_to(client, os.getpid).result(60)
    future = submit_to(client, os.kill, pid, signal.SIGKILL)
    wait_until(lambda: future.status != "pending")
    error = result_of(future, "rank 3 step 40")
    assert isinstance(error, WorkerDied)
    assert error.message == "rank 3 step 40: the worker that took the task died (SIGKILL)"
    assert submit_to(client, os.getpid).result(60) != pid


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


def test_there_is_a_worker_for_each_processor_unless_somebody_chooses() -> None:
    assert count_of_workers(3) == 3
    assert count_of_workers(None) == min(len(os.sched_getaffinity(0)), 8)


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
