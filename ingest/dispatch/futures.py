"""What workers answer, as results and errors of this project; and what a task asks of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingest.dispatch.clients import TaskFuture
from ingest.dispatch.process_client import ProcessFuture
from workers.errors import ClusterError, DumpIngestError, WorkerDied, as_error
from workers.processes.start import ProcessDied

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
        return as_error(task, exc) if isinstance(future, ProcessFuture) else _error_of_dask(task, exc)


def _error_of_dask(task: str, exc: Exception) -> DumpIngestError:
    """Convert an exception of Dask, or of a task on it, to an error of this project."""
    return error_of_cluster(task, exc) or as_error(task, exc)


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
