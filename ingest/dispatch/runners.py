"""Where tasks run: starting workers, and tasks whose results are waited for one after the other."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from ingest.dispatch.clients import TaskClient, TaskFuture, error_of_cluster
from ingest.dispatch.processes import ProcessClient, ProcessWorkers
from ingest.settings import Settings
from workers.errors import ClusterError, WorkerDied
from workers.processes.worker import ProcessDied
from workers.store.prefetch import in_order, prefetch

if TYPE_CHECKING:
    from ingest.dispatch.cluster import Cluster


#: What to do if workers have failed a command that does not wait for them.
AGAIN_HINT = "Run the same command again, or without --scheduler and --workers."
Job = TypeVar("Job")
Result = TypeVar("Result")


class RunJobs(Protocol):
    """Runs tasks of one kind."""

    def __call__(self, task: Callable[[Job], Result], jobs: Sequence[Job], /) -> Iterable[Result]:
        """Run `task` on each job; return the results in the order of the jobs."""


_THREADS = 2
#: Tasks of workers at once: each returns at most the counts of a step.
_TASKS_AT_ONCE = 32


def in_threads(task: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
    """Run the tasks in threads of this process, at most `_THREADS` ahead of the result that is used."""
    return prefetch(jobs, task, ahead=_THREADS, threads=_THREADS, name="dump-ingest-tasks")


def run_in_order(
    client: TaskClient, function: Callable[[Job], Result], jobs: Iterable[Job], *, ahead: int
) -> Generator[Result, None, None]:
    """Run a task for each job, and yield their results in the order of the jobs, or raise what a task raised.

    A task is run up to twice more if it fails. Whatever ends the iteration, remaining tasks are cancelled.

    Args:
        client: of the workers.
        function: what a task runs.
        jobs: its arguments.
        ahead: how many further tasks are in flight, or done, while the caller holds a result.

    Raises:
        ClusterError: the scheduler was lost, or every worker that took a task died.
    """
    name = getattr(function, "__name__", "task")

    def submit(job: Job) -> TaskFuture:
        return client.submit(function, job, key=f"{name}-{uuid.uuid4().hex}", pure=False, retries=2)

    try:
        yield from in_order(jobs, submit, ahead=ahead)
    except CancelledError as exc:
        raise ClusterError(f"{name}: workers ended before it was done", hint=AGAIN_HINT) from exc
    except ProcessDied as exc:
        raise WorkerDied(f"{name}: every worker that took the task died ({exc})", hint=AGAIN_HINT) from exc
    except Exception as exc:
        error = None if isinstance(client, ProcessClient) else error_of_cluster(name, exc)
        if error is None:
            raise
        error.hint = error.hint or AGAIN_HINT
        raise error from exc


def start_workers(settings: Settings, *, when_needed: bool = False) -> Cluster | ProcessWorkers:
    """Return workers; a context manager that ends what it has started.

    Unless the settings name a scheduler, they are processes of this one.

    Args:
        settings: name the scheduler, or the number of processes.
        when_needed: whether processes start when they are needed first, and not now: they start fastest while
            this process has one thread.

    Raises:
        ClusterError: the system does not start them.
    """
    if settings.scheduler is None:
        return ProcessWorkers(settings.workers, settings.cpu_limits, when_needed=when_needed)
    from ingest.dispatch.cluster import Cluster  # deferred: distributed takes 0.4 s, and most need none

    return Cluster(settings)


@contextmanager
def open_runner(settings: Settings) -> Iterator[RunJobs]:
    """Yield a function that runs tasks in this process, or on the workers that the settings name.

    Workers that this starts, because the settings have a number of them, end with it.

    Raises:
        ClusterError: no worker answers.
    """
    if settings.scheduler is None and settings.workers is None:
        yield in_threads
        return
    with start_workers(settings) as workers:
        client = workers.connect()

        def run(task: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterable[Result]:
            return run_in_order(client, task, jobs, ahead=_TASKS_AT_ONCE - 1)

        yield run
