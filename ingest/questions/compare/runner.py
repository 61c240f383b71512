"""Where pairs are compared: in threads of this process, or in tasks of a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from ingest.dispatch.runners import AGAIN_HINT, run_in_order
from workers.errors import ClusterError, DumpIngestError
from workers.store.prefetch import in_order
from workers.tasks.compare import (
    WHOLE_NBYTES,
    each,
    pack,
    run_packed,
)

if TYPE_CHECKING:
    from ingest.dispatch.clients import TaskClient

#: The most threads: each may hold about 400 MiB.
_MAX_THREADS = 4
#: Tasks that are submitted ahead, for each thread of the cluster.
_TASKS_AHEAD = 3
#: The most pairs in a batch: this many small ones take as long as a large one.
_BATCH = 2000


class Sized(Protocol):
    """Something to compare."""

    @property
    def nbytes(self) -> int:
        """Payload bytes that are read for it."""


_Job = TypeVar("_Job", bound=Sized)
_Answer = TypeVar("_Answer")


class PairRunner:
    """Compares batches of pairs in threads of this process, or in tasks of a Dask cluster. A context manager.

    The workers of the cluster must see store and dump under the same names.
    """

    def __init__(self, client: TaskClient | None = None) -> None:
        """Use the workers behind `client`, which stays open; without one, a thread for each processor."""
        self._client = client
        threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dump-ingest-compare")
        self.parts = threads if client is None else max(sum(client.nthreads().values()), 1)
        """How many batches are compared at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[[Sequence[_Job]], list[_Answer]], batches: Iterable[Sequence[_Job]]
    ) -> Iterator[list[_Answer]]:
        """Yield the results of a function for each batch, in the order of the batches.

        Raises:
            DumpIngestError: a store or a dump could not be read.
        """
        if self._client is None:
            yield from in_order(
                batches, lambda batch: self._pool.submit(function, batch), ahead=2 * self.parts
            )
            return
        packed = map(partial(pack, function), batches)
        try:
            yield from run_in_order(self._client, run_packed, packed, ahead=_TASKS_AHEAD * self.parts)
        except DumpIngestError:
            raise
        except Exception as exc:
            message = f"a worker failed: {type(exc).__name__}: {exc}"[:500]
            raise ClusterError(message, hint=AGAIN_HINT) from exc


def batched(pairs: Iterable[_Job], parts: int = 1, total: int | None = None) -> Iterator[list[_Job]]:
    """Cut pairs into batches of at most `WHOLE_NBYTES` payload bytes; a larger pair has a batch of its own.

    Args:
        pairs: what is to be compared.
        parts: how many batches are compared at once: a few small pairs are shared among that many.
        total: payload bytes of all pairs: with it, the first batch is yielded before all pairs are made.
    """
    if total is None:
        pairs = list(pairs)
        total = sum(pair.nbytes for pair in pairs)
    share = total // max(parts, 1) + 1
    limit = min(max(share, WHOLE_NBYTES // 16), WHOLE_NBYTES)
    batch: list[_Job] = []
    nbytes = 0
    for pair in pairs:
        if batch and (nbytes + pair.nbytes > limit or len(batch) == _BATCH):
            yield batch
            batch, nbytes = [], 0
        batch.append(pair)
        nbytes += pair.nbytes
    if batch:
        yield batch


def answer_each(
    runner: PairRunner, function: Callable[[_Job], _Answer], jobs: Iterable[_Job]
) -> Iterator[_Answer]:
    """Yield the answers of a function of `workers.tasks.compare`, in the order of the jobs; see `batched`.

    Raises:
        DumpIngestError: a store or a dump could not be read.
    """
    for answers in runner.map(partial(each, function), batched(jobs, runner.parts)):
        yield from answers
