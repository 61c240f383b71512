"""A part of the cubes: a few tensors of many steps, or one statistic of everything.

Of each object, the inner chunks that hold it are read and decoded, and no others. A few tensors of many steps
are read from the cubes by tensor, in which an object holds a block of steps; the steps after the last full
block, each from its own objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ingest.reader.cubes.cube_reader import CubeReader, with_nan
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.statistics import (
    NON_FINITE_FIELDS,
    STATISTICS,
    aggregated,
    default_aggregate,
    joined,
    parts_of,
)
from workers.model import MIB, ceil_div
from workers.store.backends.deadline import supervised
from workers.store.consolidated.blocks import Block
from workers.store.consolidated.cubes import GROUP
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.objects import REQUESTS_AT_ONCE, ObjectStore

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
    """Of the chunk in its array."""
    ranks: slice
    """Where its ranks are among all."""
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
        for values, target in zip(of_steps, statistics, strict=True):
            _set_known(target[..., number], values)
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


def _set_known(target: Array, values: npt.NDArray[Any]) -> None:
    """Set floats to the values of a cube, and to NaN where a count is not known."""
    target[...] = values
    if values.dtype.kind == "i":
        target[values < 0] = np.nan


def _cut(cubes: CubeReader, name: str, places: Sequence[int], tensors: Array) -> list[tuple[_Block, int]]:
    """Return where these tensors of some steps are read: in which block, and at which place in it."""
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
    """Yield the result of `do` for each job, in order. Each job reads one or a few objects."""
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
