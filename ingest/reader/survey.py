"""Statistics and digests of all tensors over ranks and steps, one step at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ingest.reader.snapshot import Snapshot
from workers.blocks import Block, TensorAxis, block_of

#: Steps whose tables are read ahead of need.
_AHEAD = 2
#: Tables of one step that are read at once.
_TABLES_AT_ONCE = 8


class Survey:
    """A snapshot, seen as a cube over (step, rank, tensor) of which one step at a time is in memory.

    Memory: three steps of all ranks, at 116 bytes a tensor and rank, and what reading their tables takes.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Look at `snapshot`; nothing is read yet."""
        self.snapshot = snapshot
        self.axis = TensorAxis()
        """All tensors of the blocks that were read so far; a place never changes its meaning."""

    def block(self, step: int) -> Block:
        """Return one step of all ranks that have it.

        Raises:
            DamagedStore: the index of a step is missing or damaged.
        """
        steps = self.snapshot.of_step(step)
        with ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="dump-ingest-survey") as threads:
            tables = dict(zip(steps, threads.map(lambda one: one.tables, steps.values()), strict=True))
        block = block_of(step, tables, self.axis)
        for one in steps.values():
            one.forget_tables()
        return block

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
