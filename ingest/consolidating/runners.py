"""Where tasks over the steps of a store run: in threads of this process, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ingest.dispatch.window import run_in_order
from workers.store.prefetch import prefetch

if TYPE_CHECKING:
    from distributed import Client

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class RunJobs(Protocol):
    """Runs tasks of one kind."""

    def __call__(self, task: Callable[[_Job], _Result], jobs: Sequence[_Job], /) -> Iterable[_Result]:
        """Run `task` on each job; return the results in the order of the jobs."""


_THREADS = 2
#: Tasks on a Dask cluster at once: each returns at most the counts of a step.
_TASKS_AT_ONCE = 32


def in_threads(task: Callable[[_Job], _Result], jobs: Sequence[_Job]) -> Iterator[_Result]:
    """Run the tasks in threads of this process, at most `_THREADS` ahead of the result that is used."""
    return prefetch(jobs, task, ahead=_THREADS, threads=_THREADS, name="dump-ingest-tasks")


def on_cluster(client: Client) -> RunJobs:
    """Return a function that runs tasks on a Dask cluster, at most `_TASKS_AT_ONCE` at once."""

    def run(task: Callable[[_Job], _Result], jobs: Sequence[_Job]) -> Iterable[_Result]:
        return run_in_order(client, task, jobs, ahead=_TASKS_AT_ONCE - 1)

    return run
