"""What Dask answers, as results and errors of this project."""

from typing import Any, cast

import pytest
from distributed import Future, KilledWorker
from distributed.client import FutureCancelledError
from distributed.scheduler import NoValidWorkerError, WorkerState

from ingest.dispatch.clients import NO_WORKER_HINT, result_of
from tests.fake_client import FakeFuture
from workers.errors import ClusterError, DumpIngestError, StoreUnavailable, WorkerDied


def answer(error: BaseException | None = None, value: object = None) -> Any:
    future = FakeFuture("key", lambda: value, ())
    if error is None:
        future.run()
    else:
        future.fail(error)
    return result_of(cast("Future[Any]", future), "rank 3 step 40")


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
    assert isinstance(result_of(cast("Future[Any]", future), "rank 0 step 1"), ClusterError)
