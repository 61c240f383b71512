"""A part of the cubes: a few tensors of many steps, or one statistic of everything.

Of each object, the inner chunks that hold it are read and decoded, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.reader.cube_reader import CubeReader
from workers.arrays.aggregate import STATISTICS
from workers.arrays.digest import DIGEST_BYTES
from workers.errors import DamagedStore
from workers.model import MIB, ceil_div
from workers.store.blocks import Block
from workers.store.cubes import ANOMALY_FIELDS, GROUP, REBUILD_HINT
from workers.store.nd_arrays import ArrayLayout
from workers.store.objects import REQUESTS_AT_ONCE, ObjectStore

Array = npt.NDArray[Any]

#: Objects that are read at once from a directory: reading and decoding release the interpreter.
_LOCAL_AT_ONCE = 2
#: An object store sends a whole object of this size, before compression, sooner than it answers two requests.
_WHOLE_NBYTES = 4 * MIB
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
    parts = _CubePart(cubes.objects, layout, cubes.state.ranks, wanted).read(blocks)
    return np.concatenate([part[..., 0] for part in parts])[: cubes.state.steps]


def narrow_blocks(
    cubes: CubeReader,
    places: Sequence[int],
    fields: tuple[str, ...],
    tensors: npt.NDArray[np.int64],
    *,
    rows: bool = True,
) -> list[Block]:
    """Return some tensors of several steps, without digests.

    Memory: the blocks, and the inner chunks that are being read.

    Args:
        cubes: where they are read.
        places: of the steps.
        fields: the statistics to read.
        tensors: places of the tensors, (n,), ascending.
        rows: whether to read their places in the index, too. Without these, `row` is 0 if a statistic is
            known, else -1.

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
    row = (
        np.stack(_steps(cubes, "row", places, tensors))
        if rows
        else np.where(_known(statistics), np.int32(0), np.int32(-1))
    )
    digest = np.zeros((*row.shape[1:], DIGEST_BYTES), np.uint8)
    ranks = tuple(cubes.ranks.tolist())
    ordered = tuple(sorted(ranks))
    return [
        Block(
            int(cubes.steps[place]), ranks, row[number], statistics[number], digest, fields, tensors
        ).of_ranks(ordered)
        for number, place in enumerate(places)
    ]


def _known(statistics: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return where any statistic is known, without the last axis, which is too short to reduce."""
    known = ~np.isnan(statistics[..., 0])
    for number in range(1, statistics.shape[-1]):
        known |= ~np.isnan(statistics[..., number])
    return known


def _steps(cubes: CubeReader, name: str, places: Sequence[int], tensors: Array) -> list[Array]:
    """Return some tensors of a cube: of each step, (rank, tensor)."""
    layout = (cubes.cubes.anomalies if name in ANOMALY_FIELDS else cubes.cubes.per_step)[name]
    steps = layout.chunk[0]
    blocks = sorted({place // steps for place in places})
    parts = _CubePart(cubes.objects, layout, cubes.state.ranks, tensors).read(blocks)
    by_block = dict(zip(blocks, parts, strict=True))
    return [by_block[place // steps][place % steps] for place in places]


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
    layout: ArrayLayout
    ranks: int
    wanted: Array
    """Ascending."""

    def read(self, blocks: Sequence[int]) -> list[Array]:
        """Return for each of these blocks of steps (step of the block, rank, place)."""
        shape = (self.layout.chunk[0], self.ranks, self.wanted.size)
        answers = [np.full(shape, self.layout.fill, self.layout.dtype) for _ in blocks]
        jobs = [
            (answer, part)
            for block, answer in zip(blocks, answers, strict=True)
            for part in self._objects_of(block)
        ]

        def fill(job: tuple[Array, _WantedObject]) -> None:
            answer, part = job
            values = self._read(part)
            if values is not None:
                answer[:, part.ranks, part.columns] = values[:, : part.ranks.stop - part.ranks.start]

        at_once = _LOCAL_AT_ONCE if self.objects.is_local else REQUESTS_AT_ONCE
        with ThreadPoolExecutor(at_once, thread_name_prefix="dump-ingest-cubes") as threads:
            for _ in threads.map(fill, jobs):
                pass
        return answers

    def _objects_of(self, block: int) -> list[_WantedObject]:
        """Return the objects of one block of steps that hold anything that is wanted."""
        wide, long = self.layout.chunk[1:]
        number, within = np.divmod(self.wanted, long)
        starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
        return [
            _WantedObject(
                f"{GROUP}/{self.layout.key((block, chunk, int(number[start])))}",
                slice(chunk * wide, min((chunk + 1) * wide, self.ranks)),
                slice(start, stop),
                within[start:stop],
            )
            for chunk, (start, stop) in product(
                range(ceil_div(self.ranks, wide)), pairwise([*starts, self.wanted.size])
            )
        ]

    def _read(self, part: _WantedObject) -> Array | None:
        """Return what is wanted of an object, (step, rank, place); None if it was never written."""
        layout, key = self.layout, part.key
        if not layout.inner:
            data = self.objects.get(key)
            return None if data is None else layout.decode(data, key)[..., part.places]
        number, within = np.divmod(part.places, layout.inner)
        # An inner chunk after the other, and of each what is wanted of it.
        starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
        inner = self._inner_chunks(key, number[starts].tolist())
        if inner is None:
            return None
        ends = pairwise([*starts, number.size])
        columns = [chunk[..., within[start:stop]] for chunk, (start, stop) in zip(inner, ends, strict=True)]
        return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=-1)

    def _inner_chunks(self, key: str, numbers: Sequence[int]) -> list[Array] | None:
        """Return these inner chunks of an object; None if it was never written.

        Raises:
            DamagedStore: it is damaged; or it is missing, and no cube of tensors.
        """
        layout, objects = self.layout, self.objects
        nbytes = int(np.prod(layout.chunk)) * layout.dtype.itemsize
        many = len(numbers) > layout.chunk[layout.inner_axis] // layout.inner // 2
        is_whole = many or (not objects.is_local and nbytes <= _WHOLE_NBYTES)
        end = objects.get(key) if is_whole else objects.get_range(key, -layout.index_nbytes)
        if end is None:
            if "tensor" in layout.dimensions:
                return None
            raise DamagedStore(f"{key}: missing", hint=REBUILD_HINT)
        ranges = [layout.inner_ranges(end, key)[number] for number in numbers]
        chunks = []
        for first, last in [(0, len(end))] if is_whole else _near(ranges):
            data = memoryview(end if is_whole else objects.get_range(key, first, last) or b"")
            chunks += [
                layout.decode_inner(bytes(data[start - first : stop - first]), key, stop - start)
                for start, stop in ranges
                if first <= start and stop <= last
            ]
        return chunks


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
