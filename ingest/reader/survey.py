"""Statistics and digests of all tensors over ranks and steps, one step at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ingest.reader.consolidated import ConsolidatedCubes, open_cubes
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step
from workers.errors import DamagedStore
from workers.store.blocks import Block, TensorAxis, block_of

#: Steps whose tables are read ahead of need.
_AHEAD = 2
#: Tables of one step that are read at once.
_TABLES_AT_ONCE = 8


class StepStatistics:
    """A snapshot, seen as a cube over (step, rank, tensor) of which one step at a time is in memory.

    Steps come from the consolidated view where it holds them as they are committed, else from the tables of
    each rank; nothing but the time it takes depends on it.

    Memory: three steps of all ranks, at 116 bytes a tensor and rank, and what reading their tables takes.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Look at `snapshot`; no tables are read yet."""
        self.snapshot = snapshot
        self._view = _usable_view(snapshot)
        self.axis = TensorAxis(self._view.axis.keys if self._view else ())
        """All tensors of the blocks that were read so far; a place never changes its meaning."""

    def block(self, step: int) -> Block:
        """Return one step of all ranks that have it.

        Raises:
            DamagedStore: the index of a step is missing or damaged.
        """
        steps = self.snapshot.of_step(step)
        return self._from_view(step, steps) or self._from_tables(step, steps)

    def blocks(self, steps: Sequence[int] | None = None) -> Iterator[Block]:
        """Yield these steps, or all in order; the next ones are read meanwhile.

        Raises:
            DamagedStore: the index of a step is missing or damaged.
        """
        # One thread, so that places on the axis are given out in order of steps.
        with ThreadPoolExecutor(1, thread_name_prefix="dump-ingest-survey") as thread:
            ahead: deque[Future[Block]] = deque()
            try:
                for step in self.snapshot.steps if steps is None else steps:
                    ahead.append(thread.submit(self.block, step))
                    if len(ahead) > _AHEAD:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                thread.shutdown(cancel_futures=True)

    def _from_view(self, step: int, steps: Mapping[int, Step]) -> Block | None:
        """Return the step as the view has it; None where that is not what is committed, or not whole."""
        view = self._view
        if view is None or step not in view.steps:
            return None
        place = int(np.flatnonzero(view.steps == step)[0])
        fingerprints = dict(zip(view.ranks.tolist(), view.table("fingerprint")[place], strict=True))
        if place in view.state.rewriting or any(
            fingerprints.get(rank) != one.fingerprint for rank, one in steps.items()
        ):
            return None
        try:
            block = view.block(place).of_ranks(tuple(steps))
            if not view.is_current():
                return None
        except DamagedStore:
            return None  # it holds nothing of its own, and `consolidate --rebuild` will say more
        counts = block.present.sum(axis=1).tolist()
        totals = [one.commit.summary for one in steps.values()]
        whole = counts == [one.tensors + one.statistics_only for one in totals]
        return block if whole else None

    def _from_tables(self, step: int, steps: Mapping[int, Step]) -> Block:
        with ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="dump-ingest-survey") as threads:
            tables = dict(zip(steps, threads.map(lambda one: one.tables, steps.values()), strict=True))
        block = block_of(step, tables, self.axis)
        for one in steps.values():
            one.forget_tables()
        return block


def _usable_view(snapshot: Snapshot) -> ConsolidatedCubes | None:
    """Return the view of a store, with its axes read; None where there is none, or it is damaged."""
    try:
        view = open_cubes(snapshot.store.objects)
        if view is not None:
            _ = view.steps, view.ranks, view.axis, view.table("fingerprint")
    except DamagedStore:
        return None
    return view
