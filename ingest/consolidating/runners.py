"""Where the tasks of the consolidator run: in threads of this process, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from ingest.dispatch.window import run_in_order
from workers.tasks.consolidate import ConsolidateJob, ConsolidateResult, consolidate

if TYPE_CHECKING:
    from distributed import Client

RunJobs: TypeAlias = Callable[[Sequence[ConsolidateJob]], Iterable[ConsolidateResult]]
"""Runs tasks, and returns their results in the order of the tasks."""

_THREADS = 2
#: Tasks on a Dask cluster at once: each returns the counts of a step.
_TASKS_AT_ONCE = 32


def in_threads(jobs: Sequence[ConsolidateJob]) -> Iterator[ConsolidateResult]:
    """Run the tasks in threads of this process."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="dump-ingest-consolidate") as threads:
        yield from threads.map(consolidate, jobs)


def on_cluster(client: Client) -> RunJobs:
    """Return a function that runs tasks on a Dask cluster, at most `_TASKS_AT_ONCE` at once."""
    return lambda jobs: run_in_order(client, consolidate, jobs, ahead=_TASKS_AT_ONCE - 1)
