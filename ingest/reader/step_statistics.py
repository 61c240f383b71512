"""Statistics and digests of the tensors of a snapshot: from the consolidated cubes, or from the indexes.

A step comes from the cubes if they hold it as it is committed on every rank of the snapshot that has it, else
from the indexes. Both give the same numbers: everything in the cubes is also in the indexes, so damaged cubes
are passed over. `consolidate --rebuild` repairs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ingest.reader.cubes.cube_columns import aggregated_steps, aggregates, narrow_blocks
from ingest.reader.cubes.cube_reader import CubeReader, counted_tensors, read_cubes
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step
from ingest.reader.tensor_filter import BlockFilter
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore
from workers.store.consolidated.blocks import Block, TensorAxis, block_of
from workers.store.prefetch import prefetch

_Floats = npt.NDArray[np.float64]
_Found = TypeVar("_Found")
#: Steps that are read ahead of need.
_STEPS_AHEAD = 2
#: How many numbers of some tensors are read at once, about; each takes 8 bytes.
_NARROW_AT_ONCE = 2_000_000
#: Indexes of one step that are read at once.
_TABLES_AT_ONCE = 8


class StepStatistics:
    """The statistics and digests of a snapshot over (step, rank, tensor), of which one step is in memory.

    Memory: three steps of all ranks, at 116 bytes for each tensor and rank, and the indexes being read.
    """

    def __init__(self, snapshot: Snapshot, fields: tuple[str, ...] = FIELDS, *, digests: bool = True) -> None:
        """Use the steps of `snapshot`. Reads the axes of the cubes, but not yet an index.

        Args:
            snapshot: which steps.
            fields: the statistics that are needed: of the cubes, others are not read, and are not in blocks
                that come from there.
            digests: whether digests are needed.
        """
        self.snapshot = snapshot
        self._fields, self._digests = fields, digests
        self._cubes = _usable_cubes(snapshot)
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
        self, cubes: CubeReader, tensors: npt.NDArray[np.int64], steps: Sequence[int]
    ) -> Iterator[Block]:
        """Yield steps with these tensors alone if the cubes hold them as they are committed, else whole."""
        numbers = cubes.state.ranks * tensors.size * (len(self._fields) + 1)
        at_once = max(_NARROW_AT_ONCE // max(numbers, 1), 1)
        per_block = cubes.state.grid.steps
        if at_once > per_block:
            at_once -= at_once % per_block  # so that few blocks of steps are read for two batches
        batches = [steps[start : start + at_once] for start in range(0, len(steps), at_once)]

        def read(batch: Sequence[int]) -> dict[int, Block]:
            places = list(_held_places(cubes, self.snapshot, batch).values())
            blocks = _current(cubes, lambda: narrow_blocks(cubes, places, self._fields, tensors)) or ()
            return {block.step: block.of_ranks(tuple(self.snapshot.of_step(block.step))) for block in blocks}

        batches_read = prefetch(batches, read, ahead=1, threads=1, name="dump-ingest-statistics")
        for batch, narrow in zip(batches, batches_read, strict=True):
            for step in batch:
                yield narrow[step] if step in narrow else self.block(step)

    def _from_cubes(self, step: int, steps: Mapping[int, Step]) -> Block | None:
        """Return a step from the cubes; None if they do not hold exactly what is committed."""
        cubes = self._cubes
        if cubes is None or (place := _held_places(cubes, self.snapshot, [step]).get(step)) is None:
            return None
        whole = _current(cubes, lambda: cubes.block(place, self._fields, digests=self._digests))
        block = whole and whole.of_ranks(tuple(steps))
        counts = [counted_tensors(opened) for opened in steps.values()]
        return block if block and block.present.sum(axis=1).tolist() == counts else None

    def _from_tables(self, step: int, steps: Mapping[int, Step]) -> Block:
        with ThreadPoolExecutor(_TABLES_AT_ONCE, thread_name_prefix="dump-ingest-statistics") as threads:
            tables = dict(zip(steps, threads.map(lambda opened: opened.tables, steps.values()), strict=True))
        block = block_of(step, tables, self.axis)
        for opened in steps.values():
            opened.forget_tables()
        return block


def _current(cubes: CubeReader, read: Callable[[], _Found]) -> _Found | None:
    """Return what is read of cubes; None if they are damaged, or a step was rewritten meanwhile."""
    try:
        found = read()
        return found if cubes.is_current() else None
    except DamagedStore:
        return None


def _held_places(cubes: CubeReader, snapshot: Snapshot, steps: Sequence[int]) -> dict[int, int]:
    """Return where the cubes have those of the steps that they have of all ranks, as they are committed."""
    place_of = {step: place for place, step in enumerate(cubes.steps.tolist())}
    ranks, fingerprints = cubes.ranks.tolist(), cubes.table("fingerprint")
    held = {}
    for step in steps:
        place = place_of.get(step)
        if place is not None and place not in cubes.state.rewriting:
            has = dict(zip(ranks, fingerprints[place].tolist(), strict=True))
            if all(has.get(rank) == opened.fingerprint for rank, opened in snapshot.of_step(step).items()):
                held[step] = place
    return held


def _usable_cubes(snapshot: Snapshot) -> CubeReader | None:
    """Return the cubes of a store with their axes read; None if it has none, or they are damaged."""
    try:
        cubes = read_cubes(snapshot.store.objects)
        if cubes is not None:
            _ = cubes.steps, cubes.ranks, cubes.axis, cubes.table("fingerprint")
    except DamagedStore:
        return None
    return cubes


@dataclass
class CleanSteps:
    """The steps of a snapshot that the cubes hold as they are committed, with every count known and zero.

    The totals of a commit do not tell this of a step with statistics alone: these may lack the number of NaN.

    Cost: nothing before the first question; then the three cubes of counts, a block of steps after the other.
    Memory: an inner chunk of one of them.
    """

    snapshot: Snapshot
    counts: tuple[str, ...]
    """The counts that must be zero: some of `nan_count`, `pos_inf_count` and `neg_inf_count`."""
    _blocks: dict[int, set[int]] = field(default_factory=dict)
    """The clean steps of each block of steps that was read."""

    def __contains__(self, step: int) -> bool:
        """Return whether a step is known to be clean on all ranks of the snapshot that have it.

        If the cubes are damaged or not up to date, nothing is known: the indexes have what they have.
        """
        cubes, place = self._cubes, self._places.get(step)
        if cubes is None or place is None:
            return False
        block = place // cubes.state.grid.steps
        if block not in self._blocks:
            self._blocks[block] = _current(cubes, lambda: self._clean_of_block(cubes, block)) or set()
        return step in self._blocks[block]

    @cached_property
    def _cubes(self) -> CubeReader | None:
        return _usable_cubes(self.snapshot)

    @cached_property
    def _places(self) -> dict[int, int]:
        """Where the cubes have the steps of the snapshot as they are committed, by step."""
        return _held_places(self._cubes, self.snapshot, self.snapshot.steps) if self._cubes else {}

    def _clean_of_block(self, cubes: CubeReader, block: int) -> set[int]:
        """Return the clean steps of a block of steps.

        In the cubes, -1 is a count that is not known, and also that of a tensor which a rank does not have.
        So the number of tensors that a commit counts decides.
        """
        per_block, ranks = cubes.state.grid.steps, cubes.state.ranks
        known, bad = np.zeros((per_block, ranks), np.int64), np.zeros((per_block, ranks), bool)
        for name in dict.fromkeys(("nan_count", *self.counts)):
            last = np.empty(0, np.int64)
            for first, values in cubes.anomaly_parts(name, block):
                if values is not last:  # parts in a row may be the same array
                    last = values
                    known_here = np.count_nonzero(values >= 0, axis=-1)
                    bad_here = values.max(axis=-1, initial=-1) > 0
                there = slice(first, first + values.shape[1])
                width = min(values.shape[1], ranks - first)
                if name == "nan_count":
                    known[:, there] += known_here[:, :width]
                if name in self.counts:
                    bad[:, there] |= bad_here[:, :width]
        column_of = {rank: column for column, rank in enumerate(cubes.ranks.tolist())}

        def is_clean(step: int, within: int) -> bool:
            return all(
                not bad[within, column_of[rank]] and known[within, column_of[rank]] == counted_tensors(opened)
                for rank, opened in self.snapshot.of_step(step).items()
            )

        return {
            step
            for step, place in self._places.items()
            if place // per_block == block and is_clean(step, place % per_block)
        }


@dataclass(frozen=True, slots=True, eq=False)
class RankValues:
    """A statistic of several tensors together, in one step."""

    ranks: npt.NDArray[np.int64]
    """Ascending."""
    values: npt.NDArray[np.float64]
    """By the same ranks; NaN if it is not known."""


def of_all_tensors(snapshot: Snapshot, statistic: str) -> dict[int, RankValues]:
    """Return a statistic of all tensors together by step, by its default aggregate.

    Takes one or two requests for each 32 steps and 256 ranks. Steps that the cubes do not hold as they are
    committed are left out; all of them, if the cubes are damaged.
    """
    return _from_cubes(snapshot, lambda cubes, places: aggregates(cubes, statistic)[list(places)])


def of_named_tensors(snapshot: Snapshot, statistic: str, pattern: str) -> dict[int, RankValues]:
    """Return a statistic of the tensors whose names match a glob together by step, by its default aggregate.

    Takes one or two requests for each step, 256 ranks and 8192 tensors, and each part of the statistic. Steps
    that the cubes do not hold as they are committed are left out; all of them, if the cubes are damaged, or
    know nothing of such tensors.
    """

    def read(cubes: CubeReader, places: Sequence[int]) -> _Floats | None:
        tensors = np.flatnonzero(BlockFilter({"name": pattern}, cubes.axis).of_names(len(cubes.axis)))
        values = aggregated_steps(cubes, places, statistic, tensors) if tensors.size else None
        return None if values is None or np.isnan(values).all() else values

    return _from_cubes(snapshot, read)


def _from_cubes(
    snapshot: Snapshot, read: Callable[[CubeReader, Sequence[int]], _Floats | None]
) -> dict[int, RankValues]:
    """Return values by step of those steps that the cubes hold as they are committed.

    Args:
        snapshot: which steps.
        read: returns the values of these places of steps, (step, rank), by places; None if the cubes do not
            have them.
    """
    try:
        cubes = read_cubes(snapshot.store.objects)
        if cubes is None:
            return {}
        held = _held_places(cubes, snapshot, snapshot.steps)
        values = read(cubes, list(held.values())) if held else None
        if values is None or not cubes.is_current():
            return {}
    except DamagedStore:
        return {}
    column_of = {rank: column for column, rank in enumerate(cubes.ranks.tolist())}
    known = {}
    for step, of_ranks in zip(held, values, strict=True):
        ranks = list(snapshot.of_step(step))
        known[step] = RankValues(np.array(ranks, np.int64), of_ranks[[column_of[rank] for rank in ranks]])
    return known
