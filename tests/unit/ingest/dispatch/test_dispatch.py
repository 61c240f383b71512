"""How tasks get to workers and results come back: windows, futures, processes, and the cluster."""

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import dask
import pytest
from distributed import Future as DaskFuture
from distributed import KilledWorker, LocalCluster
from distributed.client import FutureCancelledError
from distributed.scheduler import NoValidWorkerError, WorkerState
from distributed.utils import get_ip

from ingest.dispatch.clients import NO_WORKER_HINT, result_of
from ingest.dispatch.cluster import Cluster, check_encryption, is_open, require_answer
from ingest.dispatch.runners import run_in_order
from ingest.dispatch.window import batches
from ingest.settings import load
from tests.cli import run
from tests.services import FakeFuture
from tests.stores import DumpLibrary
from workers.errors import ClusterError, DumpIngestError, StoreUnavailable, WorkerDied
from workers.model import SourceFile

# A bounded number of tasks is in flight, and none outlives its use.


def task(name: str = "task") -> Any:
    """Return a task that ends when the test says so."""
    return FakeFuture(name, lambda: None, ())


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


# What Dask answers, as results and errors of this project.


def answer(error: BaseException | None = None, value: object = None) -> Any:
    future = FakeFuture("key", lambda: value, ())
    if error is None:
        future.run()
    else:
        future.fail(error)
    return result_of(cast("DaskFuture[Any]", future), "rank 3 step 40")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (StoreUnavailable("away"), StoreUnavailable, "away"),
        (FutureCancelledError("key", "lost"), ClusterError, "the result of the task was lost"),
        (TimeoutError(), ClusterError, "the result of the task was lost (TimeoutError)"),
        (
            KilledWorker("key", cast("WorkerState", "tcp://1"), 3),
            WorkerDied,
            "every worker that took the task",
        ),
        (MemoryError(), WorkerDied, "ran out of memory"),
        (ZeroDivisionError("odd"), DumpIngestError, "ZeroDivisionError: odd"),
    ],
)
def test_whatever_a_task_raised_becomes_an_error_that_names_its_step(
    error: BaseException, kind: type[DumpIngestError], message: str
) -> None:
    result = answer(error)
    assert type(result) is kind
    assert message in result.message


def test_a_task_that_no_worker_may_take_says_what_to_start() -> None:
    result = answer(NoValidWorkerError("key", set(), set(), {}, 60.0))
    assert isinstance(result, ClusterError)
    assert result.hint == NO_WORKER_HINT


def test_a_task_that_the_scheduler_lost_may_be_tried_again() -> None:
    future = FakeFuture("key", int, ())
    future.lose()
    assert isinstance(result_of(cast("DaskFuture[Any]", future), "rank 0 step 1"), ClusterError)


# A scheduler that hangs accepts connections and never answers.


def test_who_accepts_and_does_not_answer_hangs() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(
            ClusterError, match=f"127.0.0.1:{port} accepts connections, and gives no answer"
        ) as told:
            require_answer(f"tcp://127.0.0.1:{port}", 0.2)
    assert time.monotonic() - started < 30  # Dask alone: without end
    assert "restart it" in told.value.hint


def test_nobody_there_is_an_error_after_the_time_that_was_given() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(OSError, match=address):
        require_answer(address, 0.2)
    with pytest.raises(ValueError, match="nowhere"):
        require_answer("tcp://nowhere", 0.2)


# Whom a connection to Dask lets in.


@pytest.mark.parametrize(
    "address",
    [
        "tcp://10.0.0.7:8786",
        "tcp://[fe80::1]:8786",
        "tcp://scheduler:8786",
        "ws://scheduler:80",
        "tcp://0.0.0.0:1",
    ],
)
def test_what_others_can_reach_is_open(address: str) -> None:
    assert is_open(address)


@pytest.mark.dask
def test_a_command_warns_of_a_scheduler_that_others_can_reach(dumps: DumpLibrary, tmp_path: Path) -> None:
    """Whoever reaches it can run code: that is said, once, even though everything works."""
    own = get_ip()
    if not is_open(f"tcp://{own}:1"):
        pytest.skip("this machine has no address but loopback")
    with LocalCluster(
        host=own,
        processes=False,
        protocol="tcp",
        n_workers=1,
        threads_per_worker=1,
        dashboard_address=f"{own}:0",
    ) as cluster:
        words = ("--store", tmp_path / "run.zarr", "--scheduler", cluster.scheduler_address)
        done = run("ingest", dumps["nan-log-2rank"] / "dump", *words)
        assert done.stderr.count("is not encrypted") == 1
        assert "use tls://" in done.stderr


@pytest.mark.parametrize(
    ("address", "config", "said"),
    [
        ("tls://10.0.0.1:8786", {}, "no certificate for tls://10.0.0.1:8786"),
        ("tcp://10.0.0.1:8786", {"distributed.comm.require-encryption": True}, "is not encrypted"),
    ],
)
def test_an_address_that_does_not_go_with_the_configuration_is_refused_at_once(
    address: str, config: dict[str, object], said: str
) -> None:
    """Dask would wait for its timeout, and then print a traceback."""
    with dask.config.set(config), pytest.raises(ClusterError, match=said):
        check_encryption(address)


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ("ModuleNotFoundError(\"No module named 'workers'\")", ClusterError),
        ("MemoryError()", RuntimeError),
    ],
)
def test_workers_without_dump_ingest_are_named_and_other_errors_are_kept(
    told: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        scheduler = None

        def get_versions(self, **_: object) -> None: ...

        def register_plugin(self, _: object) -> None:
            raise RuntimeError(told)

    monkeypatch.setattr(Cluster, "reach", lambda _: Refusing())
    with pytest.raises(error, match=told[:11]):
        Cluster(load(scheduler="tcp://127.0.0.1:1").settings).connect()
