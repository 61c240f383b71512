"""The two kinds of clients: of a Dask scheduler, and of worker processes of this command.

Both submit tasks in the same way, and say in different ways how far these are, and what became of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ingest.dispatch.processes import ProcessClient, ProcessFuture
from workers.errors import ClusterError, DumpIngestError, WorkerDied, as_error
from workers.processes.worker import ProcessDied

if TYPE_CHECKING:
    from distributed import Client, Future


TaskClient: TypeAlias = "Client | ProcessClient"
TaskFuture: TypeAlias = "Future[Any] | ProcessFuture"

#: How long to wait for an answer of the scheduler, and for a worker to be replaced, in seconds.
_ANSWER_S = 10.0
RESTART_S = 30.0
#: Of a scheduler that does not answer.
HANGS_HINT = "It hangs: restart it. Its workers and watchers reconnect by themselves."


class ClusterAnswer(NamedTuple):
    """What a scheduler and its workers said."""

    states: dict[Any, str | None]
    """By key of a task; None for one that the scheduler does not know."""
    assigned: dict[Any, str]
    """Which worker has each task: it may wait there until others have ended."""
    at_work: dict[str, frozenset[Any]]
    """What each worker runs, also for clients that have gone; nothing of one that does not even answer."""


def submit(
    client: TaskClient,
    function: Callable[[bytes], Any],
    packed: bytes,
    *,
    key: str,
    resources: dict[str, float] | None,
    priority: int = 0,
) -> TaskFuture:
    """Submit a task. If the client was closed just now, the task is cancelled, as all of its others are.

    Args:
        client: of the workers.
        function: what the task runs.
        packed: its argument.
        key: the name of the task, which no other has.
        resources: what a worker must offer, as Dask counts resources.
        priority: tasks of a higher one run first.
    """
    options: dict[str, Any] = {"key": key, "pure": False, "resources": resources, "priority": priority}
    if isinstance(client, ProcessClient):
        return client.submit(function, packed, **options)
    from distributed.client import ClosedClientError  # deferred: distributed takes 0.4 s to import

    try:
        return client.submit(function, packed, **options)
    except ClosedClientError:
        lost = ProcessFuture(key, b"")
        lost.cancel()
        return lost


def ask(client: TaskClient, keys: list[Any]) -> ClusterAnswer | None:
    """Return the progress of tasks; None if nobody answers."""
    if isinstance(client, ProcessClient):
        at_work = client.at_work()
        return ClusterAnswer(
            dict(client.states(keys)),
            {key: worker for worker, key in at_work.items()},
            {worker: frozenset([key]) for worker, key in at_work.items()},
        )
    try:
        scheduler: Any = client.scheduler
        states = client.sync(scheduler.get_task_status, keys=keys, callback_timeout=_ANSWER_S)
        processing = client.sync(scheduler.processing, workers=None, callback_timeout=_ANSWER_S)
    except Exception:  # noqa: BLE001  (of Dask or the network: the client notices a scheduler that has gone)
        return None
    assigned = {key: worker for worker, tasks in processing.items() for key in tasks}
    workers = {assigned[key] for key in keys if key in assigned}
    running_on = {worker: tasks for worker in workers if (tasks := _at_work(client, worker)) is not None}
    return ClusterAnswer(states, assigned, running_on)


def replace_worker(client: TaskClient, worker: str) -> None:
    """Have a worker replaced; returns when that has happened, or did not."""
    if isinstance(client, ProcessClient):
        client.replace(worker)
        return
    try:
        client.restart_workers([worker], timeout=RESTART_S, raise_for_error=False)
    except Exception:  # noqa: BLE001  (it has gone, or has nobody to start it again: Dask removes it)
        return


def _at_work(client: Client, worker: str) -> frozenset[Any] | None:
    scheduler: Any = client.scheduler
    question = {"op": "call_stack", "keys": None}
    try:
        return frozenset(
            client.sync(scheduler.proxy, msg=question, worker=worker, callback_timeout=_ANSWER_S)
        )
    except Exception:  # noqa: BLE001  (it has gone, or something keeps its event loop from answering)
        return None


#: What a task asks for of each resource that a worker offers is 1 / _SHARES of the whole.
_SHARES = 1000
#: How long to wait for the small result of a task that has finished, in seconds.
_GATHER_TIMEOUT_S = 30
#: What to do if no worker may take the tasks of a host.
NO_WORKER_HINT = (
    "Start a worker on this host with the resources of the setting `worker_resources`, "
    "such as `dask worker ADDRESS --resources host-n17=1`; or unset it where all hosts see the dump."
)


def shares_of(resources: Mapping[str, float]) -> dict[str, float] | None:
    """Return how much of a worker's resources a task requests; None if it requests none.

    It is a label and not a quota: how many tasks a worker runs at once is up to its threads.
    """
    return {name: amount / _SHARES for name, amount in resources.items()} or None


def result_of(future: TaskFuture, task: str) -> Any:
    """Return the result of a future that has come to its end, or the error that it ended with.

    Args:
        future: of a task.
        task: names in errors what the task was to do.
    """
    if future.status == "cancelled":
        return ClusterError(f"{task}: the scheduler lost the task")
    try:
        return future.result(timeout=_GATHER_TIMEOUT_S)
    except DumpIngestError as exc:
        return exc
    except ProcessDied as exc:
        return WorkerDied(f"{task}: the worker that took the task died ({exc})")
    except Exception as exc:  # noqa: BLE001  (whatever a task raised: it counts as a failed attempt)
        of_cluster = None if isinstance(future, ProcessFuture) else error_of_cluster(task, exc)
        return of_cluster or as_error(task, exc)


def error_of_cluster(task: str, exc: Exception) -> ClusterError | None:
    """Convert an exception of Dask to an error of this project; return None if a task has raised it."""
    from distributed import KilledWorker  # deferred: distributed takes 0.5 s to import
    from distributed.client import ClosedClientError, FutureCancelledError  # deferred: see above
    from distributed.scheduler import NoValidWorkerError  # deferred: see above

    if isinstance(exc, ClosedClientError | FutureCancelledError | TimeoutError):
        return ClusterError(f"{task}: the result of the task was lost ({type(exc).__name__})")
    if isinstance(exc, NoValidWorkerError):
        return ClusterError(f"{task}: no worker offers what the task needs", hint=NO_WORKER_HINT)
    if isinstance(exc, KilledWorker):
        return WorkerDied(f"{task}: every worker that took the task died ({exc.last_worker!r:.100})")
    return None
