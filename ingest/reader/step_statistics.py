"""Statistics and digests of the tensors of a snapshot: from the consolidated cubes, or from the indexes.

A step comes from the cubes if they hold it as it is committed on every rank of the snapshot that has it, else
from the indexes. Both give the same numbers: everything in the cubes is also in the indexes, so damaged cubes
are passed over. `consolidate --rebuild` repairs them.

Of each object of the cubes, the inner chunks that are needed are read and decoded, and no others. A few
tensors of many steps are read from the cubes by tensor, in which an object holds a block of steps; the steps
after the last full block, each from its own objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ingest.reader.cube_reader import CubeReader, counted_tensors, read_cubes, with_nan
from ingest.reader.snapshot import Snapshot
from ingest.reader.step import Step
from ingest.reader.tensor_filter import BlockFilter
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.statistics import (
    FIELDS,
    NON_FINITE_FIELDS,
    STATISTICS,
    aggregated,
    default_aggregate,
    joined,
    parts_of,
)
from workers.errors import DamagedStore
from workers.model import MIB, ceil_div
from workers.store.backends.failures import supervised
from workers.store.consolidated.blocks import Block, TensorAxis, block_of
from workers.store.consolidated.cubes import GROUP
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.objects import REQUESTS_AT_ONCE, ObjectStore
from workers.store.prefetch import prefetch

Array = npt.NDArray[Any]
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")

#: Objects that are read at once from a directory: reading and decoding release the interpreter.
_LOCAL_AT_ONCE = 2
#: The most that is read of a block of several steps: what an object of one step takes at most, so that all
#: requests at once take no more memory. Of more tensors, each step is read by itself.
_BLOCK_NBYTES = 16 * MIB


class _Block(NamedTuple):
    """One or several steps of a cube that are in the same objects: a block along the axis of steps."""

    layout: ArrayLayout
    number: int


class _WantedObject(NamedTuple):
    """What is wanted of one object of a block."""

    position: tuple[int, int, int]
    ranks: slice
    columns: slice
    """Where its part of what is wanted is."""
    places: Array
    """Places along the last axis within the object, ascending."""


def aggregates(cubes: CubeReader, statistic: str) -> npt.NDArray[np.float64]:
    """Return a statistic of all tensors together, (step, rank), by place.

    Raises:
        DamagedStore: they are damaged.
    """
    layout = cubes.layouts.aggregate
    wanted = np.array([STATISTICS.index(statistic)])
    blocks = [_Block(layout, number) for number in range(ceil_div(cubes.state.steps, layout.chunk[0]))]
    parts = _read(cubes, blocks, wanted).values()
    return np.concatenate([part[..., 0] for part in parts])[: cubes.state.steps]


def narrow_blocks(
    cubes: CubeReader,
    places: Sequence[int],
    fields: tuple[str, ...],
    tensors: npt.NDArray[np.int64],
) -> list[Block]:
    """Return some tensors of several steps, without digests.

    Memory: the blocks, and the inner chunks that are being read.

    Args:
        cubes: where they are read.
        places: of the steps.
        fields: the statistics to read.
        tensors: places of the tensors, (n,), ascending.

    Raises:
        DamagedStore: a cube is damaged.
    """
    if not places:
        return []
    statistics = np.empty((len(places), cubes.state.ranks, tensors.size, len(fields)))
    cuts = [_cut(cubes, name, places, tensors) for name in (*fields, "row")]
    read = _read(cubes, [block for cut in cuts for block, _ in cut], tensors)
    *of_fields, rows = [[read[block][within] for block, within in cut] for cut in cuts]
    for number, of_steps in enumerate(of_fields):
        for place, values in enumerate(of_steps):
            statistics[place, ..., number] = with_nan(values)
    row = np.stack(rows)
    digest = np.zeros((*row.shape[1:], DIGEST_BYTES), np.uint8)
    ranks = tuple(cubes.ranks.tolist())
    ordered = tuple(sorted(ranks))
    return [
        Block(
            int(cubes.steps[place]), ranks, row[number], statistics[number], digest, fields, tensors
        ).of_ranks(ordered)
        for number, place in enumerate(places)
    ]


def aggregated_steps(
    cubes: CubeReader, places: Sequence[int], statistic: str, tensors: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return a statistic of some tensors together, by its default aggregate, of several steps.

    Each inner chunk is put together as soon as it is decoded, while the caches of the processor hold it.

    Memory: the inner chunks that are being read.

    Args:
        cubes: where they are read.
        places: of the steps.
        statistic: one of `STATISTICS`.
        tensors: places of the tensors, (n,), ascending.

    Returns:
        (step, rank), by places; NaN if none of the tensors has a known value.

    Raises:
        DamagedStore: a cube is damaged.
    """
    how, ranks = default_aggregate(statistic), cubes.state.ranks
    # The parts of a sum are cut in the same way.
    cuts = [_cut(cubes, name, places, tensors) for name in parts_of(statistic)]
    blocks_of = [tuple(block for block, _ in of_parts) for of_parts in zip(*cuts, strict=True)]
    answers = {blocks: np.full((blocks[0].layout.chunk[0], ranks), np.nan) for blocks in blocks_of}
    jobs = [
        (blocks, alike)
        for blocks in answers
        for alike in zip(*(_objects(cubes, block, tensors) for block in blocks), strict=True)
    ]

    def together(job: tuple[tuple[_Block, ...], tuple[_WantedObject, ...]]) -> npt.NDArray[np.float64]:
        blocks, alike = job
        total = np.full(blocks[0].layout.chunk[:2], np.nan)
        of_parts = (_chunks(cubes, block.layout, wanted) for block, wanted in zip(blocks, alike, strict=True))
        # One of them may never have been written: then the sum is unknown.
        for chunks in zip(*of_parts, strict=False):
            total = joined(total, _aggregated_sum(chunks, how), how)
        return total

    for (blocks, alike), total in zip(jobs, _in_threads(cubes.objects, together, jobs), strict=True):
        answer = answers[blocks][:, alike[0].ranks]
        answer[...] = joined(answer, total[:, : answer.shape[1]], how)
    return np.array([answers[blocks][place] for blocks, (_, place) in zip(blocks_of, cuts[0], strict=True)])


def _aggregated_sum(parts: Sequence[Array], how: str) -> npt.NDArray[np.float64]:
    """Return the aggregate over tensors, (...), of the sum of arrays, (..., tensor), as cubes have them."""
    if all(part.dtype.kind == "i" and part.size and part.min() >= 0 for part in parts):
        # Counts that are all known, nearly always: summed as they are, which takes a third of the time.
        counts: Array = sum((part.sum(axis=-1) for part in parts[1:]), start=parts[0].sum(axis=-1))
        return counts.astype(np.float64)
    first, *others = map(with_nan, parts)
    return aggregated(sum(others, start=first), how)


def _cut(cubes: CubeReader, name: str, places: Sequence[int], tensors: Array) -> list[tuple[_Block, int]]:
    grid = cubes.state.grid
    steps = grid.steps
    if name in NON_FINITE_FIELDS:
        layout = cubes.layouts.anomalies[name]
        return [(_Block(layout, place // steps), place % steps) for place in places]
    of_step, by_tensor = cubes.layouts.per_step[name], cubes.layouts.by_tensor[name]
    if tensors.size * grid.ranks * steps * by_tensor.dtype.itemsize > _BLOCK_NBYTES:
        return [(_Block(of_step, place), 0) for place in places]
    whole = _blocks_read_whole(cubes, places)
    return [
        (_Block(by_tensor, place // steps), place % steps)
        if place // steps in whole
        else (_Block(of_step, place), 0)
        for place in places
    ]


def _blocks_read_whole(cubes: CubeReader, places: Sequence[int]) -> set[int]:
    """Return the blocks of steps to be read whole; of one with few wanted steps, less is decoded by step."""
    steps = cubes.state.grid.steps
    wanted = Counter(place // steps for place in places)
    return {block for block, count in wanted.items() if 2 * count >= steps and cubes.state.is_cut(block)}


def _read(cubes: CubeReader, blocks: Sequence[_Block], wanted: Array) -> dict[_Block, Array]:
    """Return some places along the last axis of each block, (step of the block, rank, place)."""
    shape = (cubes.state.ranks, wanted.size)
    answers = {
        block: np.full((block.layout.chunk[0], *shape), block.layout.fill, block.layout.dtype)
        for block in blocks
    }
    jobs = [(block, part) for block in answers for part in _objects(cubes, block, wanted)]

    def fill(job: tuple[_Block, _WantedObject]) -> None:
        block, part = job
        chunks = list(_chunks(cubes, block.layout, part))
        if chunks:
            values = chunks[0] if len(chunks) == 1 else np.concatenate(chunks, axis=-1)
            target = answers[block][:, part.ranks, part.columns]
            target[...] = values[:, : target.shape[1]]

    for _ in _in_threads(cubes.objects, fill, jobs):
        pass
    return answers


def _in_threads(
    objects: ObjectStore, do: Callable[[_Job], _Result], jobs: Sequence[_Job]
) -> Iterator[_Result]:
    at_once = min(_LOCAL_AT_ONCE if objects.is_local else REQUESTS_AT_ONCE, len(jobs))

    def share(first: int) -> list[_Result]:
        # Supervised, because handing over each read to another thread takes as long as a small one.
        return supervised(lambda: [do(job) for job in jobs[first::at_once]])

    with ThreadPoolExecutor(max(at_once, 1), thread_name_prefix="dump-ingest-cubes") as threads:
        shares = list(threads.map(share, range(at_once)))
    for number in range(len(jobs)):
        yield shares[number % at_once][number // at_once]


def _objects(cubes: CubeReader, block: _Block, wanted: Array) -> list[_WantedObject]:
    """Return the objects of a block that hold any of these places, ascending, along its last axis."""
    wide, long = block.layout.chunk[1:]
    number, within = np.divmod(wanted, long)
    starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    return [
        _WantedObject(
            (block.number, chunk, int(number[start])),
            slice(chunk * wide, min((chunk + 1) * wide, cubes.state.ranks)),
            slice(start, stop),
            within[start:stop],
        )
        for chunk, (start, stop) in product(
            range(ceil_div(cubes.state.ranks, wide)), pairwise([*starts, wanted.size])
        )
    ]


def _chunks(cubes: CubeReader, layout: ArrayLayout, part: _WantedObject) -> Iterator[Array]:
    """Yield the wanted part of each inner chunk of an object, (step, rank, place), ascending.

    Nothing if the object is rightly absent; all at once if the array is not sharded.

    Raises:
        DamagedStore: it is damaged or missing.
    """
    if not layout.inner:
        key = f"{GROUP}/{layout.key(part.position)}"
        data = cubes.objects.get(key)
        if data is None:
            cubes.check_absent(layout, part.position)
        else:
            yield layout.decode(data, key).take(part.places, axis=-1)
        return
    number, within = np.divmod(part.places, layout.inner)
    # An inner chunk after the other, and of each what is wanted of it.
    starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    inner = cubes.inner_chunks(layout, part.position, number[starts].tolist())
    for chunk, (start, stop) in zip(inner, pairwise([*starts, number.size]), strict=False):
        # All of it as it is; a part of it without a way around: `take` is twice as fast as an index.
        yield chunk if stop - start == layout.inner else chunk.take(within[start:stop], axis=-1)


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
