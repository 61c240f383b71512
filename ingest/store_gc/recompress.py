"""`gc --recompress`: encodes the tensors of old steps again, so that they take less room."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

from ingest.reader.catalog import Catalog
from ingest.store_gc.execute import opened
from ingest.store_gc.plan import DAY_S
from workers.errors import UsageError
from workers.model import StepKey
from workers.store import commit, metadata
from workers.store.packed.recompressing import Recompressed, is_dense, recompress

#: Steps that are worked on at once, at most: as many as there are processors.
_MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class RecompressPlan:
    """The steps whose tensors would be encoded again. Making it changes nothing."""

    keys: tuple[StepKey, ...]
    nbytes: int
    """Stored bytes of their tensors now, without those in the pool."""


@dataclass(slots=True)
class RecompressReport:
    """What became of the steps."""

    done: list[Recompressed] = field(default_factory=list)
    stopped: bool = False
    """Whether it was stopped before its end."""

    @property
    def steps(self) -> int:
        """How many steps have other bytes now."""
        return sum(not step.left for step in self.done)

    @property
    def saved_nbytes(self) -> int:
        """How many bytes they save, as soon as gc has removed their previous generations."""
        return sum(step.before_nbytes - step.after_nbytes for step in self.done)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, a row for each step."""
        rows = [asdict(step) | asdict(step.key) for step in self.done]
        for row in rows:
            del row["key"]
        return {
            "steps": self.steps,
            "saved_nbytes": self.saved_nbytes,
            "stopped": self.stopped,
            "done": rows,
        }


def plan_recompress(
    store: Catalog | str | PathLike[str],
    *,
    older_than_s: float = 7 * DAY_S,
    ranks: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> RecompressPlan:
    """Plan which steps `recompress_store` takes: those with tensors that it has not taken before.

    Args:
        store: an opened store, a directory or any fsspec URL.
        older_than_s: only steps that were committed longer ago than this, in seconds.
        ranks: only these ranks; all if None.
        steps: only these steps; all if None.

    Raises:
        UsageError: the store does not exist, or has no such rank or step.
        StoreError: the store refused.
    """
    catalog = opened(store)
    keys = [key for key in catalog.listed(ranks, steps) if key.step is not None]
    if not keys and (ranks or steps):
        raise UsageError(
            "the store has none of these ranks and steps", hint="`dump-ingest ls STORE` lists what it has."
        )
    before = time.time() - older_than_s
    commits, _ = commit.read_many(catalog.objects, keys)
    cold = {
        key: sum(nbytes for path, nbytes in made.record.stored.items() if metadata.is_of_tensors(path))
        for key, made in commits.items()
        if made.record.committed_at_s < before and not is_dense(made) and made.without_tensors is None
    }
    return RecompressPlan(tuple(key for key, nbytes in cold.items() if nbytes), sum(cold.values()))


def recompress_store(
    store: Catalog | str | PathLike[str],
    plan: RecompressPlan,
    *,
    stop: threading.Event | None = None,
    progress: Callable[[Recompressed], None] = lambda _: None,
) -> RecompressReport:
    """Encode the tensors of the steps of a plan again; what `dump-ingest gc --recompress --apply` does.

    Safe to kill, to run again, and next to everything else: each step changes with one write. Its previous
    generation goes with a later `gc`, after the grace period.

    Args:
        store: an opened store, a directory or any fsspec URL.
        plan: from `plan_recompress`.
        stop: ends the work early when it is set.
        progress: is called with each step when it is done.

    Raises:
        UsageError: the store does not exist.
        StoreError: the store refused. What was done stays.
    """
    objects, report = opened(store).objects, RecompressReport()
    stop = stop or threading.Event()
    threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS)
    with ThreadPoolExecutor(threads, thread_name_prefix="dump-ingest-recompress") as pool:
        try:
            for step in pool.map(lambda key: None if stop.is_set() else recompress(objects, key), plan.keys):
                if step is not None:
                    report.done.append(step)
                    progress(step)
        except BaseException:
            stop.set()
            raise
    report.stopped = stop.is_set()
    return report
