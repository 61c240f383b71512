"""Statistics and digests of all tensors of a snapshot, one step of all ranks at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from ingest.reader.cubes.consolidated import ConsolidatedCubes, open_cubes
from ingest.reader.cubes.cube_columns import narrow_blocks
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore
from workers.store.consolidated.blocks import Block, TensorAxis, block_of
from workers.store.prefetch import prefetch

#: Steps that are read ahead of need.
_STEPS_AHEAD = 2
#: How many numbers of some tensors are read at once, about; each takes 8 bytes.
_NARROW_AT_ONCE = 2_000_000
#: Indexes of one step that are read at once.
_TABLES_AT_ONCE = 8


class StepStatistics:
    """The statistics and digests of a snapshot over (step, rank, tensor), of which one step is in memory.

    A step comes from the consolidated cubes if they hold it as it is committed, else from the indexes of its
    ranks. Both give the same numbers.

    Memory: three steps of all ranks, at 116 bytes for each tensor and rank, and the indexes being read.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        fields: tuple[str, ...] = FIELDS,
        *,
        digests: bool = True,
    ) -> None:
        """Use the steps of `snapshot`. Reads the axes of the cubes, but not yet an index.

        Args:
            snapshot: which steps.
            fields: the statistics that are needed: of the cubes, others are not read, and are not in blocks
                that come from there.
            digests: whether digests are needed.
        """
        self.snapshot = snapshot
        self._fields, self._digests = fields, digests
        self._cubes = usable_cubes(snapshot)
        self.axis = TensorAxis(self._cubes.axis.keys if self._cubes else ())
        """All tensors of the blocks that were read so far; a place never changes its meaning."""
        self._tensors: npt.NDArray[np.int64] | None = None

    def narrow_to(self, tensors: npt.NDArray[np.int64]) -> None:
        """Have `blocks` read these tensors alone where it can; blocks may still have others.

        Args:
            tensors: places on the axis as it is now, (n,), ascending.
        """
        self._tensors = tensors

    def block(self, step: int) -> Block:
        """Return one step of all ranks that have it.

        Raises:
            DamagedStore: the index of a step is missing or damaged.
        """
        steps = self.snapshot.of_step(step)
        return self._from_cubes(step, steps) or self._from_tables(step, steps)

    def blocks(self, steps: Sequence[int] | None = None) -> Iterator[Block]:
        """Yield these steps, or all of the snapshot in order; the next ones are read meanwhile.

        Raises:
            DamagedStore: the index of a step is missing or damaged.
        """
        chosen = self.snapshot.steps if steps is None else steps
        if self._cubes is not None and self._tensors is not None and self._tensors.size:
            yield from self._with_narrow_blocks(self._cubes, self._tensors, chosen)
            return
        # One thread, so that the axis grows in the order of the steps.
        yield from prefetch(chosen, self.block, ahead=_STEPS_AHEAD, threads=1, name="dump-ingest-statistics")

    def _with_narrow_blocks(
        self, cubes: ConsolidatedCubes, tensors: npt.NDArray[np.int64], steps: Sequence[int]
    ) -> Iterator[Block]:
        """Yield steps with these tensors alone if the cubes hold them as they are committed, else whole."""
        numbers = cubes.state.ranks * tensors.size * (len(self._fields) + 1)
        at_once = max(_NARROW_AT_ONCE // max(numbers, 1), 1)
        per_block = cubes.state.grid.steps
        if at_once > per_block:
            at_once -= at_once % per_block  # so that few blocks of steps are read for two batches
        batches = [steps[start : start + at_once] for start in range(0, len(steps), at_once)]

        def read(batch: Sequence[int]) -> dict[int, Block]:
            place_of = held_places(cubes, self.snapshot, batch)
            try:
                blocks = narrow_blocks(cubes, list(place_of.values()), self._fields, tensors)
                if not cubes.is_current():
                    return {}
            except DamagedStore:
                return {}
            return {block.step: block.of_ranks(tuple(self.snapshot.of_step(block.step))) for block in blocks}

        batches_read = prefetch(batches, read, ahead=1, threads=1, name="dump-ingest-statistics")
        for batch, narrow in zip(batches, batches_read, strict=True):
            for step in batch:
                yield narrow[step] if step in narrow else self.block(step)

    def _from_cubes(self, step: int, steps: Mapping[int, Step]) -> Block | None:
        """Return a step from the cubes; None if they do not hold exactly what is committed."""
        cubes = self._cubes
        if cubes is None or (place := held_places(cubes, self.snapshot, [step]).get(step)) is None:
            return None
        try:
            block = cubes.block(place, self._fields, digests=self._digests).of_ranks(tuple(steps))
            if not cubes.is_current():
                return None
        except DamagedStore:
            return (
                None  # Everything in the cubes is also in the indexes. `consolidate --rebuild` repairs them.
            )
        return block if _is_whole(block, steps) else None

    def _from_tables(self, step: int, steps: Mapping[int, Step]) -> Block:
        with ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="dump-ingest-statistics") as threads:
            tables = dict(zip(steps, threads.map(lambda opened: opened.tables, steps.values()), strict=True))
        block = block_of(step, tables, self.axis)
        for opened in steps.values():
            opened.forget_tables()
        return block


def held_places(cubes: ConsolidatedCubes, snapshot: Snapshot, steps: Sequence[int]) -> dict[int, int]:
    """Return where the cubes have those of the steps that they have of all ranks, as they are committed."""
    place_of = {step: place for place, step in enumerate(cubes.steps.tolist())}
    ranks, fingerprints = cubes.ranks.tolist(), cubes.table("fingerprint")
    held = {}
    for step in steps:
        place = place_of.get(step)
        if place is None or place in cubes.state.rewriting:
            continue
        has = dict(zip(ranks, fingerprints[place].tolist(), strict=True))
        if all(has.get(rank) == opened.fingerprint for rank, opened in snapshot.of_step(step).items()):
            held[step] = place
    return held


def _is_whole(block: Block, steps: Mapping[int, Step]) -> bool:
    """Return whether each rank has as many tensors in a block as its commit counts."""
    summaries = [opened.commit.summary for opened in steps.values()]
    counts = [summary.tensors + summary.statistics_only for summary in summaries]
    return bool(block.present.sum(axis=1).tolist() == counts)


def usable_cubes(snapshot: Snapshot) -> ConsolidatedCubes | None:
    """Return the cubes of a store with their axes read; None if it has none, or they are damaged."""
    try:
        cubes = open_cubes(snapshot.store.objects)
        if cubes is not None:
            _ = cubes.steps, cubes.ranks, cubes.axis, cubes.table("fingerprint")
    except DamagedStore:
        return None
    return cubes
