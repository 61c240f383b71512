"""Read the consolidated cubes without zarr-python or xarray: with fewer requests, and in less time.

Arrays are read by parts: the objects that they consist of, of a sharded one also single inner chunks. Where
inner chunks are in their objects is kept between questions, which saves a request for each.

Commits of many steps are read from their copies: a request for each step, not each commit. A copy stands for
a commit if no change of the commit is announced. Who changes a commit announces it before, and the
announcement stands until the copy was written again from what was read afterwards. So announcements are
listed first: a commit whose change is announced later has changed since the question was asked. No listing of
an object store shows that a commit is still what was copied: it would name all other objects of each step,
too. See docs/design/007-consolidated-view.md.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.reader.snapshot import LeftOut
from ingest.reader.text import counted
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.statistics import FIELDS, NON_FINITE_FIELDS, STATISTICS
from workers.errors import DamagedStore, StoreDenied, StoreFormatError
from workers.model import MIB, StepKey, ceil_div
from workers.store import commit
from workers.store.commit import Commit, read_announcements
from workers.store.consolidated.blocks import Block, TensorAxis
from workers.store.consolidated.cubes import (
    CUBE,
    GROUP,
    REBUILD_HINT,
    CubeLayouts,
    CubeState,
    parse_state,
    read_axis,
)
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.objects import ObjectStore
from workers.store.step import StoredStep

#: Chunks that are requested at once, so that those in flight take little memory beside a decoded cube.
_CHUNKS_AT_ONCE = 64
#: What is asked for at the end of an object: its index, and all of an object that is shorter.
_END_NBYTES = MIB // 32
#: Reading this much that is not wanted takes less time than a second request, of a directory, too.
_GAP_NBYTES = MIB // 2
#: Where the inner chunks of objects are, by object and state of the cubes: an object that is written again
#: has another state. Up to `_INDEXES_KEPT`, of a few hundred bytes each: of 12 statistics over some hundred
#: steps.
_INDEXES: dict[Hashable, bytes] = {}
_INDEXES_KEPT = 16_384
_INDEXES_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """What is read of an array: all of it, or its chunks at one position along its first axis."""

    layout: ArrayLayout
    shape: tuple[int, ...]
    keys: Mapping[tuple[int, ...], str]
    """The objects of its chunks, by their positions in the part."""
    first: int
    """Position of its first chunk along the first axis."""

    @classmethod
    def of(cls, layout: ArrayLayout, shape: tuple[int, ...], first: int | None = None) -> ArrayPart:
        """Return an array of this shape; with `first`, only its chunks at that position of the first axis."""
        shift = first or 0
        indexes = layout.keys(shape if first is None else (layout.chunk[0], *shape[1:]))
        keys = {index: f"{GROUP}/{layout.key((index[0] + shift, *index[1:]))}" for index in indexes}
        return cls(layout, shape, keys, shift)

    def decode(self, objects: Mapping[str, bytes]) -> npt.NDArray[Any]:
        """Return the part from its objects.

        Raises:
            DamagedStore: one is damaged.
        """
        whole: npt.NDArray[Any] | None = None
        for index, key in self.keys.items():
            chunk = self.layout.decode(objects.get(key), key)
            if len(self.keys) == 1:
                return chunk[tuple(map(slice, self.shape))]
            whole = np.empty(self.shape, self.layout.dtype) if whole is None else whole
            places = (slice(i * n, (i + 1) * n) for i, n in zip(index, self.layout.chunk, strict=True))
            target = whole[tuple(places)]
            target[...] = chunk[tuple(map(slice, target.shape))]
        return np.empty(self.shape, self.layout.dtype) if whole is None else whole


def batches(parts: Mapping[str, ArrayPart]) -> Iterator[dict[str, ArrayPart]]:
    """Yield parts that are requested at once: of few chunks together, or a large one alone."""
    batch: dict[str, ArrayPart] = {}
    for name, part in parts.items():
        if batch and sum(len(own.keys) for own in (*batch.values(), part)) > _CHUNKS_AT_ONCE:
            yield batch
            batch = {}
        batch[name] = part
    yield batch


@dataclass(eq=False)
class CubeReader:
    """Statistics and digests of all tensors over steps and ranks, as of when this was opened.

    Steps that are consolidated later are not included. A place is a position on one of the axes; `steps`,
    `ranks` and `axis` name the step, rank and tensor at each place.
    """

    objects: ObjectStore
    state: CubeState
    _tables: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    _anomalies: dict[str, tuple[int, npt.NDArray[np.int64]]] = field(default_factory=dict)
    """The block of each count of non-finite elements that was read last: the next step is in it, too."""
    _written: dict[tuple[int, int], Collection[int]] = field(default_factory=dict)
    """By place of a step and chunk of ranks, if it was asked for: the chunks of tensors that it has."""

    def __repr__(self) -> str:
        state = self.state
        return f"<{type(self).__name__} {state.steps} steps x {state.ranks} ranks x {state.tensors} tensors>"

    @cached_property
    def layouts(self) -> CubeLayouts:
        """The layouts of the arrays."""
        return CubeLayouts(self.state.grid)

    @cached_property
    def steps(self) -> npt.NDArray[np.int64]:
        """The step at each place, (step,)."""
        return self._read(self.layouts.steps, (self.state.steps,))

    @cached_property
    def ranks(self) -> npt.NDArray[np.int64]:
        """The rank at each place, (rank,)."""
        return self._read(self.layouts.ranks, (self.state.ranks,))

    @cached_property
    def axis(self) -> TensorAxis:
        """The tensors, by place."""
        return read_axis(self.objects, self.layouts, self.state.tensors)

    @cached_property
    def tensors(self) -> list[str]:
        """A unique name for each tensor, (tensor,)."""
        return list(map(str, self._read(self.layouts.keys["tensor"], (self.state.tensors,))))

    def table(self, name: str) -> npt.NDArray[Any]:
        """Return an array with one value for each step and rank, (step, rank). It is read once and kept."""
        if name not in self._tables:
            self._tables[name] = self._read(self.layouts.tables[name], (self.state.steps, self.state.ranks))
        return self._tables[name]

    def is_current(self) -> bool:
        """Return whether the consolidator has not begun to rewrite a step since the cubes were opened."""
        latest, own = parse_state(self.objects.get(f"{GROUP}/zarr.json")), self.state
        return latest is not None and (latest.epoch, latest.rewrites) == (own.epoch, own.rewrites)

    def cube(self, name: str, place: int) -> npt.NDArray[Any]:
        """Return one step of one cube, (rank, tensor) or (rank, tensor, digest_byte).

        Takes one request for each 256 ranks and 8192 tensors.

        Raises:
            DamagedStore: it is damaged.
        """
        return next(self.cubes_of_step([name], place))

    def cubes_of_step(self, names: Sequence[str], place: int) -> Iterator[npt.NDArray[Any]]:
        """Yield one step of each of these cubes, as `cube` returns it. Small cubes are requested at once.

        Raises:
            DamagedStore: one is damaged.
        """
        block, within = divmod(place, self.state.grid.steps)
        for batch in batches({name: self._part(name, place) for name in names}):
            objects = self._objects_of(batch.values())
            for name, part in batch.items():
                if name not in NON_FINITE_FIELDS:
                    yield part.decode(objects)[0]
                    continue
                if self._kept_block(name) != block:
                    counts = part.decode(objects)
                    # Most blocks are zeros, which need no memory.
                    kept = counts if counts.any() else np.broadcast_to(np.int64(0), counts.shape)
                    self._anomalies[name] = (block, kept)
                yield self._anomalies[name][1][within]

    def _part(self, name: str, place: int) -> ArrayPart:
        """Return the part of a cube that one step takes; without objects if its block is kept."""
        if name in NON_FINITE_FIELDS:
            layout, block = self.layouts.anomalies[name], place // self.state.grid.steps
            if self._kept_block(name) == block:
                return ArrayPart(layout, (), {}, block)
            return ArrayPart.of(layout, self._shape_of_steps(layout), first=block)
        shape = (1, self.state.ranks, self.state.tensors, *([DIGEST_BYTES] if name == "digest" else []))
        return ArrayPart.of(self.layouts.per_step[name], shape, first=place)

    def _kept_block(self, name: str) -> int:
        return self._anomalies[name][0] if name in self._anomalies else -1

    def block(self, place: int, fields: tuple[str, ...] = FIELDS, *, digests: bool = True) -> Block:
        """Return statistics, rows and digests of one step, for all ranks of the cubes in ascending order.

        Args:
            place: of the step.
            fields: the statistics to read.
            digests: whether to read digests.

        Raises:
            DamagedStore: a cube is damaged.
        """
        ranks = self.ranks.tolist()
        cubes = self.cubes_of_step([*fields, "row", *(["digest"] if digests else [])], place)
        # One array after the other, because questions are about one statistic at a time.
        statistics = np.empty((len(fields), len(ranks), self.state.tensors))
        for number in range(len(fields)):
            statistics[number] = with_nan(next(cubes))
        row = next(cubes)
        digest = next(cubes) if digests else np.zeros((*row.shape, DIGEST_BYTES), np.uint8)
        step, of_tensors = int(self.steps[place]), np.moveaxis(statistics, 0, -1)
        return Block(step, tuple(ranks), row, of_tensors, digest, fields).of_ranks(tuple(sorted(ranks)))

    def anomaly_parts(self, name: str, block: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield one block of a count of non-finite elements in parts, each of some tensors of some ranks.

        Each part is (step of the block, rank, tensor), and comes with the place of its first rank. It may
        have more ranks than there are. Parts in a row that are equal may be the same array. Memory: one part,
        of 4 MiB for 64 ranks.

        Raises:
            DamagedStore: one is damaged or missing.
        """
        layout = self.layouts.anomalies[name]
        _, ranks, tensors = layout.chunk
        width = layout.inner or tensors
        read = ArrayPart.of(layout, self._shape_of_steps(layout), first=block)
        objects = self._objects_of([read])
        for (_, rank_chunk, tensor_chunk), key in read.keys.items():
            if key not in objects:
                continue  # none of its ranks has any of its tensors
            left = min(self.state.tensors - tensor_chunk * tensors, tensors)
            self._keep_index(layout, block, key, objects[key])
            parts = islice(layout.inner_parts(objects[key], key), ceil_div(left, width))
            for number, part in enumerate(parts):
                known = left - number * width
                yield rank_chunk * ranks, part if known >= width else part[..., :known]

    def inner_chunks(
        self, layout: ArrayLayout, position: tuple[int, ...], numbers: Sequence[int]
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield inner chunks of an object, and read no others unless they lie between; safe in threads.

        Args:
            layout: of the array, which is sharded.
            position: of the chunk in the array.
            numbers: of the inner chunks, ascending.

        Yields:
            The inner chunks; nothing if the object is rightly absent.

        Raises:
            DamagedStore: it is damaged or missing.
        """
        objects, key = self.objects, f"{GROUP}/{layout.key(position)}"
        is_whole = len(numbers) > layout.chunk[layout.inner_axis] // layout.inner // 2
        known = end = None if is_whole or objects.is_local else _INDEXES.get(self._named(key))
        if end is None:
            asked = max(layout.index_nbytes, _END_NBYTES)
            end = objects.get(key) if is_whole else objects.get_range(key, -asked)
            if end is None:
                self.check_absent(layout, position)
                return
            is_whole = is_whole or len(end) < asked
        every = layout.inner_ranges(end, key)
        if known is None:
            self._keep_index(layout, position[0], key, end)
        ranges = [every[number] for number in numbers]
        for first, last in [(0, len(end))] if is_whole else _near(ranges):
            data = memoryview(end if is_whole else objects.get_range(key, first, last) or b"")
            for start, stop in ranges:
                if first <= start and stop <= last:
                    yield layout.decode_inner(bytes(data[start - first : stop - first]), key, stop - start)

    def _keep_index(self, layout: ArrayLayout, block: int, key: str, end: bytes) -> None:
        """Keep the index at the end of an object for `known_index`; the oldest one that is kept goes.

        Nothing is kept of a block that is not full: each further step writes it again, without a sign of it.
        """
        is_full = (block + 1) * layout.chunk[0] <= self.state.steps
        if layout.inner and is_full and not self.objects.is_local:
            with _INDEXES_LOCK:
                _INDEXES[self._named(key)] = end[-layout.index_nbytes :]
                if len(_INDEXES) > _INDEXES_KEPT:
                    del _INDEXES[next(iter(_INDEXES))]

    def _named(self, key: str) -> Hashable:
        return (self.objects.address, self.state.epoch, self.state.rewrites, key)

    def steps_block(self, layout: ArrayLayout, block: int) -> npt.NDArray[Any]:
        """Return one block of steps of an array, (step of the block, rank) or (..., rank, tensor)."""
        return self._read(layout, self._shape_of_steps(layout), first=block)

    def _shape_of_steps(self, layout: ArrayLayout) -> tuple[int, ...]:
        lengths = {"rank": self.state.ranks, "tensor": self.state.tensors, "statistic": len(STATISTICS)}
        return (layout.chunk[0], *(lengths[axis] for axis in layout.dimensions[1:]))

    def left_out(self, *, include_partial: bool = False) -> list[LeftOut]:
        """Return the steps in the cubes that answers leave out: partial ones, and those being rewritten."""
        left_out = []
        status, quarantined = self.table("status"), self.table("quarantined")
        for place, number in np.argwhere(status != "").tolist():
            reason = ""
            if place in self.state.rewriting:
                reason = "being written again"
            elif status[place, number] != "complete" and not include_partial:
                files = int(quarantined[place, number])
                reason = "partial" + f": {counted(files, 'file')} quarantined" * (files > 0)
            if reason:
                left_out.append(LeftOut(StepKey(int(self.ranks[number]), int(self.steps[place])), reason))
        return sorted(left_out, key=lambda left: left.key.order)

    def _read(
        self, layout: ArrayLayout, shape: tuple[int, ...], first: int | None = None
    ) -> npt.NDArray[Any]:
        """Return an array; with `first`, only the chunks at that position along its first axis."""
        part = ArrayPart.of(layout, shape, first)
        return part.decode(self._objects_of([part]))

    def _objects_of(self, parts: Collection[ArrayPart]) -> dict[str, bytes]:
        """Return the objects of parts by key, without those that are rightly absent.

        Raises:
            DamagedStore: one is missing.
        """
        objects = self.objects.get_many([key for part in parts for key in part.keys.values()])
        for part in parts:
            for (first, *others), key in part.keys.items():
                if key not in objects:
                    self.check_absent(part.layout, (first + part.first, *others))
        return objects

    def check_absent(self, layout: ArrayLayout, position: Sequence[int]) -> None:
        """Check that an object is rightly absent. Every reader of the view asks here.

        A step is written into all cubes, for the tensors that the axis has by then, whatever the values are.
        So a chunk of a cube is rightly absent only if no step in it has any of its tensors on any of its
        ranks. The tables of (step, rank) have all of their chunks. A chunk of the sketches is rightly absent
        only if all of its tensors were added to the axis after the step.

        Takes one request for each 8192 tensors of the steps in the chunk.

        Args:
            layout: of the array.
            position: of the chunk in the array.

        Raises:
            DamagedStore: the object is missing.
        """
        is_absent = False
        if layout.dimensions[: len(CUBE)] == CUBE:
            first, rank_chunk, tensor_chunk = position[0] * layout.chunk[0], position[1], position[2]
            places = {*range(first, min(first + layout.chunk[0], self.state.steps))}
            places.difference_update(self.state.rewriting)
            is_absent = not any(tensor_chunk in self._written_chunks(at, rank_chunk) for at in places)
        elif layout == self.layouts.sketches:
            (wide, long), (rank_chunk, tensor_chunk) = layout.chunk[-2:], position[-2:]
            rows = self.cube("row", position[0])[rank_chunk * wide :, tensor_chunk * long :]
            is_absent = not (rows[:wide, :long] >= 0).any()
        if not is_absent:
            raise DamagedStore(f"{GROUP}/{layout.key(tuple(position))}: missing", hint=REBUILD_HINT)

    def _written_chunks(self, place: int, rank_chunk: int) -> Collection[int]:
        """Return the chunks of tensors that were written for a step and a chunk of ranks.

        Raises:
            DamagedStore: `row` lacks tensors, so one of its own chunks is missing.
        """
        if (place, rank_chunk) in self._written:
            return self._written[place, rank_chunk]
        grid, row = self.state.grid, self.layouts.per_step["row"]
        ranks = slice(rank_chunk * grid.ranks, (rank_chunk + 1) * grid.ranks)
        counts = [np.maximum(self.table(name)[place, ranks], 0) for name in ("tensors", "statistics_only")]
        expected, written = counts[0] + counts[1], list[int]()
        if expected.any():
            every = range(ceil_div(self.state.tensors, grid.tensors))
            keys = {chunk: f"{GROUP}/{row.key((place, rank_chunk, chunk))}" for chunk in every}
            objects = self.objects.get_many(list(keys.values()))
            held = np.zeros(len(expected), np.int64)
            for key, data in objects.items():
                held += np.count_nonzero(row.decode(data, key)[0, : len(held)] >= 0, axis=1)
            for number in np.flatnonzero(held != expected).tolist():
                step = StepKey(int(self.ranks[ranks][number]), int(self.steps[place]))
                reason = f"it has {held[number]} tensors instead of {expected[number]}"
                raise DamagedStore(f"{GROUP}/row: {step}: {reason}", hint=REBUILD_HINT)
            written = [chunk for chunk, key in keys.items() if key in objects]
        self._written[place, rank_chunk] = written
        return written


def read_cubes(objects: ObjectStore) -> CubeReader | None:
    """Return the cubes of a store to read from; None if it has none yet. Takes one request.

    Raises:
        DamagedStore: their metadata is damaged.
    """
    state = parse_state(objects.get(f"{GROUP}/zarr.json"))
    return None if state is None else CubeReader(objects, state)


def counted_tensors(step: StoredStep) -> int:
    """Return how many tensors a commit counts: as many as the cubes have of it."""
    return step.commit.summary.tensors + step.commit.summary.statistics_only


def with_nan(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values of a cube with NaN for what is unknown, for which counts have -1.

    Counts that are all known stay as they are.
    """
    if values.dtype.kind != "i" or (values.size and values.min() >= 0):
        return values
    return np.where(values < 0, np.nan, values)


def _near(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    near = [ranges[0]]
    for start, stop in ranges[1:]:
        first, last = near[-1]
        if start - last > _GAP_NBYTES:
            near.append((start, stop))
        else:
            near[-1] = (first, stop)
    return near


#: Of fewer commits than this for each step, and in all, the commits themselves are read.
_LEAST_OF_STEP, _LEAST = 4, 32
#: Objects that are requested at once; each has the commits of up to 256 ranks.
_AT_ONCE = 16


def read_copies(objects: ObjectStore, keys: Sequence[StepKey]) -> dict[StepKey, Commit]:
    """Read the copies of these commits that are up to date; none if they are too few for a gain.

    Raises:
        StoreError: the store refused.
    """
    steps = {key.step for key in keys}
    return {} if len(keys) < max(_LEAST, _LEAST_OF_STEP * len(steps)) else copies_of(objects, keys)


def copies_of(objects: ObjectStore, keys: Sequence[StepKey]) -> dict[StepKey, Commit]:
    """Return those of these commits whose copies are up to date, however few they are.

    Raises:
        StoreError: the store refused.
    """
    try:
        announced = read_announcements(objects)
        cubes = read_cubes(objects)
        if cubes is None:
            return {}
        texts = held_copies(cubes, {*keys} - announced.keys())
        parsed = ((key, _parsed(text, key)) for key, text in texts)
        return {key: committed for key, committed in parsed if committed is not None}
    except (DamagedStore, StoreDenied):
        return {}  # the commits themselves may be readable


def outdated_copies(cubes: CubeReader, keys: Collection[StepKey]) -> list[StepKey]:
    """Return the steps of which the view has another copy than the commit, although no change is announced.

    Commits that are damaged or gone are passed over: the copy is not at fault.

    A change that is announced and copied meanwhile looks so, too: ask again.

    Raises:
        DamagedStore: copies are damaged.
    """
    announced = read_announcements(cubes.objects)
    texts = {key: text for key, text in held_copies(cubes, keys) if key not in announced}
    commits, _ = commit.read_many(cubes.objects, list(texts))
    return [key for key, committed in commits.items() if committed.data != texts[key].encode()]


def held_copies(cubes: CubeReader, keys: Collection[StepKey]) -> Iterator[tuple[StepKey, str]]:
    """Yield the copies of these commits that the view has, up to date or not.

    Raises:
        DamagedStore: they are damaged.
    """
    layout = cubes.layouts.commits
    parts = _parts_of_steps(cubes, {key.step for key in keys})
    for first in range(0, len(parts), _AT_ONCE):
        batch = parts[first : first + _AT_ONCE]
        chunks = cubes.objects.get_many([name for name, _, _ in batch])
        for name, step, members in batch:
            # One that is missing was never written: empty.
            texts = layout.decode(chunks.get(name), name)[0].tolist()
            for rank, text in zip(members, texts, strict=False):
                if text and (key := StepKey(rank, step)) in keys:
                    yield key, text


def _parts_of_steps(cubes: CubeReader, steps: Collection[int | None]) -> list[tuple[str, int, list[int]]]:
    width, ranks = cubes.state.grid.ranks, cubes.ranks.tolist()
    return [
        (f"{GROUP}/{cubes.layouts.commits.key((place, start // width))}", step, ranks[start : start + width])
        for place, step in enumerate(cubes.steps.tolist())
        if step in steps
        for start in range(0, len(ranks), width)
    ]


def _parsed(text: str, key: StepKey) -> Commit | None:
    """Return a copied commit; None if it is not one of this step, or of a later version."""
    try:
        return commit.parse(text.encode(), key)
    except (DamagedStore, StoreFormatError):
        return None
