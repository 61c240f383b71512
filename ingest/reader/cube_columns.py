"""A part of the cubes: a few tensors of many steps, or one statistic of everything.

Of each object, the inner chunks that hold it are read and decoded, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ingest.reader import shard_indexes
from ingest.reader.cube_reader import CubeReader
from workers.arrays.aggregate import STATISTICS, aggregated, default_aggregate, joined, parts_of
from workers.arrays.digest import DIGEST_BYTES
from workers.errors import DamagedStore
from workers.model import MIB, ceil_div
from workers.store.backends.deadline import supervised
from workers.store.blocks import Block
from workers.store.cubes import ANOMALY_FIELDS, GROUP, REBUILD_HINT, CubeState
from workers.store.model import StoreAddress
from workers.store.nd_arrays import ArrayLayout
from workers.store.objects import REQUESTS_AT_ONCE, ObjectStore

Array = npt.NDArray[Any]
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")

#: Objects that are read at once from a directory: reading and decoding release the interpreter.
_LOCAL_AT_ONCE = 2
#: What an object store is asked for at the end of an object: its index, and all of an object that is shorter.
_END_NBYTES = MIB // 32
#: Reading this much that is not wanted takes less time than a second request, of a directory, too.
_GAP_NBYTES = MIB // 2


def aggregates(cubes: CubeReader, statistic: str) -> npt.NDArray[np.float64] | None:
    """Return a statistic of all tensors together, (step, rank), by place; None if the cubes do not have it.

    Raises:
        DamagedStore: they are damaged.
    """
    layout = cubes.cubes.aggregates.get("aggregate")
    if layout is None:
        return None
    wanted = np.array([STATISTICS.index(statistic)])
    blocks = range(ceil_div(cubes.state.steps, layout.chunk[0]))
    parts = _CubePart(cubes.objects, cubes.state, layout, wanted).read(blocks)
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
    for number, name in enumerate(fields):
        for values, target in zip(_steps(cubes, name, places, tensors), statistics, strict=True):
            target[..., number] = values
            if values.dtype.kind == "i":
                target[values < 0, number] = np.nan
    row = np.stack(_steps(cubes, "row", places, tensors))
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
    parts = [
        _CubePart(cubes.objects, cubes.state, _layout(cubes, name), tensors) for name in parts_of(statistic)
    ]
    steps = parts[0].layout.chunk[0]
    blocks = sorted({place // steps for place in places})
    answers = {block: np.full((steps, ranks), np.nan) for block in blocks}
    jobs = [
        (block, alike)
        for block in blocks
        for alike in zip(*(part.objects_of(block) for part in parts), strict=True)
    ]

    def together(job: tuple[int, tuple[_WantedObject, ...]]) -> npt.NDArray[np.float64]:
        total = np.full((steps, parts[0].layout.chunk[1]), np.nan)
        chunks_of_parts = (part.chunks(wanted) for part, wanted in zip(parts, job[1], strict=True))
        # One of them may never have been written: then the sum is unknown.
        for chunks in zip(*chunks_of_parts, strict=False):
            total = joined(total, _aggregated_sum(chunks, how), how)
        return total

    for (block, alike), total in zip(jobs, _in_threads(cubes.objects, together, jobs), strict=True):
        answer = answers[block][:, alike[0].ranks]
        answer[...] = joined(answer, total[:, : answer.shape[1]], how)
    return np.array([answers[place // steps][place % steps] for place in places])


def _aggregated_sum(parts: Sequence[Array], how: str) -> npt.NDArray[np.float64]:
    """Return the aggregate over tensors, (...), of the sum of arrays, (..., tensor), as cubes have them."""
    if all(part.dtype.kind == "i" and part.size and part.min() >= 0 for part in parts):
        # Counts that are all known, nearly always: summed as they are, which takes a third of the time.
        counts: Array = sum((part.sum(axis=-1) for part in parts[1:]), start=parts[0].sum(axis=-1))
        return counts.astype(np.float64)
    first, *others = map(_with_nan, parts)
    return aggregated(sum(others, start=first), how)


def _with_nan(values: Array) -> npt.NDArray[np.float64]:
    """Return numbers with NaN for what is unknown; counts have -1 for it."""
    return np.where(values < 0, np.nan, values) if values.dtype.kind == "i" else values


def _steps(cubes: CubeReader, name: str, places: Sequence[int], tensors: Array) -> list[Array]:
    """Return some tensors of a cube: of each step, (rank, tensor)."""
    layout = _layout(cubes, name)
    steps = layout.chunk[0]
    blocks = sorted({place // steps for place in places})
    parts = _CubePart(cubes.objects, cubes.state, layout, tensors).read(blocks)
    by_block = dict(zip(blocks, parts, strict=True))
    return [by_block[place // steps][place % steps] for place in places]


def _layout(cubes: CubeReader, name: str) -> ArrayLayout:
    return (cubes.cubes.anomalies if name in ANOMALY_FIELDS else cubes.cubes.per_step)[name]


def _in_threads(
    objects: ObjectStore, do: Callable[[_Job], _Result], jobs: Sequence[_Job]
) -> Iterator[_Result]:
    """Yield what `do` returns of each job, in order. Each job reads one or a few objects."""
    at_once = min(_LOCAL_AT_ONCE if objects.is_local else REQUESTS_AT_ONCE, len(jobs))

    def share(first: int) -> list[_Result]:
        # Supervised, because handing over each read to another thread takes as long as a small one.
        return supervised(lambda: [do(job) for job in jobs[first::at_once]])

    with ThreadPoolExecutor(max(at_once, 1), thread_name_prefix="dump-ingest-cubes") as threads:
        shares = list(threads.map(share, range(at_once)))
    for number in range(len(jobs)):
        yield shares[number % at_once][number // at_once]


@dataclass(frozen=True, slots=True)
class _WantedObject:
    """What is wanted of one object of an array."""

    key: str
    ranks: slice
    """Where its ranks are among all."""
    columns: slice
    """Where its part of what is wanted is."""
    places: Array
    """Places along the last axis within the object, ascending."""


@dataclass(frozen=True, slots=True, eq=False)
class _CubePart:
    """Places along the last axis of an array, (block of steps, rank, place)."""

    objects: ObjectStore
    state: CubeState
    layout: ArrayLayout
    wanted: Array
    """Ascending."""

    def read(self, blocks: Sequence[int]) -> list[Array]:
        """Return for each of these blocks of steps (step of the block, rank, place)."""
        shape = (self.layout.chunk[0], self.state.ranks, self.wanted.size)
        answers = [np.full(shape, self.layout.fill, self.layout.dtype) for _ in blocks]
        jobs = [
            (answer, part)
            for block, answer in zip(blocks, answers, strict=True)
            for part in self.objects_of(block)
        ]

        def fill(job: tuple[Array, _WantedObject]) -> None:
            answer, part = job
            chunks = list(self.chunks(part))
            if chunks:
                values = chunks[0] if len(chunks) == 1 else np.concatenate(chunks, axis=-1)
                answer[:, part.ranks, part.columns] = values[:, : part.ranks.stop - part.ranks.start]

        for _ in _in_threads(self.objects, fill, jobs):
            pass
        return answers

    def objects_of(self, block: int) -> list[_WantedObject]:
        """Return the objects of one block of steps that hold anything that is wanted."""
        wide, long = self.layout.chunk[1:]
        number, within = np.divmod(self.wanted, long)
        starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
        return [
            _WantedObject(
                f"{GROUP}/{self.layout.key((block, chunk, int(number[start])))}",
                slice(chunk * wide, min((chunk + 1) * wide, self.state.ranks)),
                slice(start, stop),
                within[start:stop],
            )
            for chunk, (start, stop) in product(
                range(ceil_div(self.state.ranks, wide)), pairwise([*starts, self.wanted.size])
            )
        ]

    def chunks(self, part: _WantedObject) -> Iterator[Array]:
        """Yield what is wanted of each inner chunk of an object, (step, rank, place), ascending.

        Nothing if the object was never written; all at once if the array is not sharded.
        """
        layout, key = self.layout, part.key
        if not layout.inner:
            data = self.objects.get(key)
            if data is not None:
                yield layout.decode(data, key).take(part.places, axis=-1)
            return
        number, within = np.divmod(part.places, layout.inner)
        # An inner chunk after the other, and of each what is wanted of it.
        starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
        inner = self._inner_chunks(key, number[starts].tolist())
        for chunk, (start, stop) in zip(inner, pairwise([*starts, number.size]), strict=False):
            # All of it as it is; a part of it without a way around: `take` is twice as fast as an index.
            yield chunk if stop - start == layout.inner else chunk.take(within[start:stop], axis=-1)

    def _inner_chunks(self, key: str, numbers: Sequence[int]) -> Iterator[Array]:
        """Yield these inner chunks of an object; nothing if it was never written.

        Raises:
            DamagedStore: it is damaged; or it is missing, and no cube of tensors.
        """
        layout, objects = self.layout, self.objects
        is_whole = len(numbers) > layout.chunk[layout.inner_axis] // layout.inner // 2
        index = None if is_whole else self._known_index(key)
        end = index
        if end is None:
            asked = max(layout.index_nbytes, 0 if objects.is_local else _END_NBYTES)
            end = objects.get(key) if is_whole else objects.get_range(key, -asked)
            if end is None:
                if "tensor" in layout.dimensions:
                    return
                raise DamagedStore(f"{key}: missing", hint=REBUILD_HINT)
            is_whole = is_whole or len(end) < asked
        every = layout.inner_ranges(end, key)
        if index is None:
            self._keep_index(key, end[-layout.index_nbytes :])
        ranges = [every[number] for number in numbers]
        for first, last in [(0, len(end))] if is_whole else _near(ranges):
            data = memoryview(end if is_whole else objects.get_range(key, first, last) or b"")
            for start, stop in ranges:
                if first <= start and stop <= last:
                    yield layout.decode_inner(bytes(data[start - first : stop - first]), key, stop - start)

    def _known_index(self, key: str) -> bytes | None:
        return None if self.objects.is_local else shard_indexes.KNOWN.get(self._named(key))

    def _keep_index(self, key: str, index: bytes) -> None:
        # Blocks of several steps are written again with each step, without a sign of it.
        if self.layout.chunk[0] == 1 and not self.objects.is_local:
            shard_indexes.KNOWN.keep(self._named(key), index)

    def _named(self, key: str) -> tuple[StoreAddress, str, int, str]:
        return (self.objects.address, self.state.epoch, self.state.rewrites, key)


def _near(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ascending ranges of an object, with those put together that lie near each other."""
    first, last = ranges[0]
    near = []
    for start, stop in ranges[1:]:
        if start - last > _GAP_NBYTES:
            near.append((first, last))
            first = start
        last = stop
    return [*near, (first, last)]
