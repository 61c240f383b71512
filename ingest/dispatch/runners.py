"""Where tasks run whose results are waited for one after the other: in this process, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from ingest.dispatch.clients import error_of_cluster
from ingest.settings import Settings
from workers.store.prefetch import in_order, prefetch

if TYPE_CHECKING:
    from distributed import Client, Future

#: What to do if the cluster has failed a command that does not wait for it.
AGAIN_HINT = "Run the same command again, or without --scheduler."
Job = TypeVar("Job")
Result = TypeVar("Result")


class RunJobs(Protocol):
    """Runs tasks of one kind."""

    def __call__(self, task: Callable[[Job], Result], jobs: Sequence[Job], /) -> Iterable[Result]:
        """Run `task` on each job; return the results in the order of the jobs."""


_THREADS = 2
#: Tasks on a Dask cluster at once: each returns at most the counts of a step.
_TASKS_AT_ONCE = 32


def in_threads(task: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
    """Run the tasks in threads of this process, at most `_THREADS` ahead of the result that is used."""
    return prefetch(jobs, task, ahead=_THREADS, threads=_THREADS, name="dump-ingest-tasks")


def on_cluster(client: Client) -> RunJobs:
    """Return a function that runs tasks on a Dask cluster, at most `_TASKS_AT_ONCE` at once."""

    def run(task: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterable[Result]:
        return run_in_order(client, task, jobs, ahead=_TASKS_AT_ONCE - 1)

    return run


def run_in_order(
    client: Client, function: Callable[[Job], Result], jobs: Iterable[Job], *, ahead: int
) -> Generator[Result, None, None]:
    """Run a task for each job, and yield their results in the order of the jobs, or raise what a task raised.

    Dask runs a task up to twice more if it fails. Whatever ends the iteration, remaining tasks are cancelled.

    Args:
        client: of the cluster.
        function: what a task runs.
        jobs: its arguments.
        ahead: how many further tasks are in flight, or done, while the caller holds a result.

    Raises:
        ClusterError: the scheduler was lost, or every worker that took a task died.
    """

    def submit(job: Job) -> Future[Result]:
        return client.submit(function, job, pure=False, retries=2)

    try:
        yield from in_order(jobs, submit, ahead=ahead)
    except Exception as exc:
        error = error_of_cluster(getattr(function, "__name__", "task"), exc)
        if error is None:
            raise
        error.hint = error.hint or AGAIN_HINT
        raise error from exc


@contextmanager
def open_runner(settings: Settings) -> Iterator[RunJobs]:
    """Yield a function that runs tasks in this process, or on the cluster that the settings name.

    A cluster that this starts, because the settings have a number of workers, ends with it.

    Raises:
        ClusterError: no worker answers.
    """
    if settings.scheduler is None and settings.workers is None:
        yield in_threads
        return
    from ingest.dispatch.cluster import Cluster  # deferred: distributed takes 0.4 s

    with Cluster(settings) as cluster:
        yield on_cluster(cluster.connect())
