"""Writes the cubes: objects of steps by tasks, what steps share, and the metadata that shows both."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ingest.dispatch.runners import RunJobs
from ingest.reader.cube_conditions import ConsolidatedCubes
from workers.arrays.statistics import STATISTICS
from workers.errors import DamagedStore
from workers.model import StepKey, ceil_div, grouped
from workers.store import metadata
from workers.store.commit import CHANGED, Commit
from workers.store.consolidated.blocks import TensorAxis, TensorKey
from workers.store.consolidated.cubes import (
    GROUP,
    KEY_FIELDS,
    SKETCH_LABELS,
    CubeGrid,
    CubeLayouts,
    CubeState,
    parse_state,
    unique_names,
)
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.objects import ObjectStore
from workers.tasks.consolidate import (
    Consolidated,
    ConsolidateJob,
    CutBlock,
    CutJob,
    UnknownTensors,
    consolidate,
    cut_by_tensor,
)


class RoundPlan(NamedTuple):
    """What one round writes. Steps are in ascending order."""

    fresh: AbstractSet[StepKey]
    """Commits that the cubes do not hold, and that can be read."""
    rewrite: Mapping[int, set[int]]
    """Steps that are in the cubes and have changed: by step, all ranks that they have now."""
    append: Mapping[int, set[int]]
    """Steps that are new in the cubes: by step, its ranks."""
    waiting: tuple[int, ...]
    """New steps that wait for more ranks."""


_METADATA = f"{GROUP}/zarr.json"
#: Stands for the generation of a step that was being rewritten when its writer ended.
_HALF = "?"
#: Cubes with at most this many steps of ranks are rebuilt for more ranks: that takes some seconds.
_MAX_REBUILT = 1024
#: Objects that are deleted at once when the cubes are rebuilt.
_DELETIONS_AT_ONCE = 16


@dataclass(slots=True, eq=False)
class CubeWriter:
    """The cubes as their only writer knows them.

    Memory: about 100 bytes for each step and rank of the run, the names of all tensors, and the blocks of
    steps that are being written (at most 192 MiB for 256 ranks and 8192 tensors).
    """

    objects: ObjectStore
    state: CubeState
    steps: dict[int, int] = field(default_factory=dict)
    """By step: its place on the axis, ascending."""
    ranks: dict[int, int] = field(default_factory=dict)
    """By rank: the same."""
    axis: TensorAxis = field(default_factory=TensorAxis)
    names: list[str] = field(default_factory=list)
    fingerprints: npt.NDArray[Any] = field(default_factory=lambda: np.full((0, 0), "", object))
    """(step, rank): the generation that is in the cubes; "" for none."""
    uncuttable: dict[int, str] = field(default_factory=dict)
    """By block of steps: the damage because of which it is not in the cubes by tensor."""
    writer_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Distinguishes its axis of tensors from that of a writer that was killed before it published."""
    _blocks: dict[tuple[str, int], npt.NDArray[Any]] = field(default_factory=dict)
    """By array and block of steps, (step, rank) or (step, rank, tensor): what is still to be written."""

    @classmethod
    def load(cls, objects: ObjectStore, known: CubeWriter | None, *, rebuild: bool) -> CubeWriter | None:
        """Return a writer of the stored cubes; None if there are none.

        Cubes of another version are deleted, and with `rebuild` any: they hold nothing of their own.

        Args:
            objects: the store.
            known: a writer from before; it is returned if nobody else has written since.
            rebuild: delete what is stored.
        """
        data = objects.get(_METADATA)
        state = None if rebuild else parse_state(data)
        if state is None:
            if data is not None:
                _remove(objects)
            return None
        if known is not None and (state.epoch, state.revision) == (known.state.epoch, known.state.revision):
            return known
        cubes = ConsolidatedCubes(objects, state)
        fingerprints = np.array(cubes.table("fingerprint"))
        # What is half written must be written again.
        half = list(state.rewriting)
        fingerprints[half] = np.where(fingerprints[half] == "", "", _HALF)
        return cls(
            objects,
            state,
            {step: place for place, step in enumerate(cubes.steps.tolist())},
            {rank: place for place, rank in enumerate(cubes.ranks.tolist())},
            cubes.axis,
            cubes.tensors,
            fingerprints,
        )

    @classmethod
    def create(cls, objects: ObjectStore, commits: Mapping[StepKey, Commit], ranks: int) -> CubeWriter:
        """Return a writer of new cubes for a run with this many ranks, sized by its first commits."""
        summaries = [committed.summary for committed in commits.values()]
        totals = [summary.tensors + summary.statistics_only for summary in summaries]
        grid = CubeGrid.for_size(ranks, max(totals, default=0))
        writer = cls(objects, CubeState(uuid.uuid4().hex, 0, 0, (), grid))
        layouts = writer.layouts
        labels = {layouts.statistics: STATISTICS}
        labels |= {layout: SKETCH_LABELS[name] for name, layout in layouts.sketch_labels.items()}
        written: dict[str, bytes] = {}
        for layout, names in labels.items():
            written |= _chunks(layout, np.array(names, object), range(len(names)))
        objects.put_many(written)
        return writer

    @property
    def layouts(self) -> CubeLayouts:
        """The layouts of the arrays."""
        return CubeLayouts(self.state.grid)

    def in_blocks(self, steps: Iterable[int]) -> list[list[int]]:
        """Group steps of the cubes by the block that holds their counts of NaN and Inf."""
        return list(grouped((self.place(step) // self.state.grid.steps, step) for step in steps).values())

    @property
    def room(self) -> int:
        """How many steps still fit into the last block of the counts of NaN and Inf."""
        return self.state.grid.steps - len(self.steps) % self.state.grid.steps

    def is_outgrown(self, ranks: int) -> bool:
        """Return whether the cubes were begun for fewer ranks than this, and are small enough to rebuild."""
        wide = CubeGrid.for_size(ranks, 0).ranks
        return wide > self.state.grid.ranks and len(self.steps) * len(self.ranks) <= _MAX_REBUILT

    def has(self, step: int) -> bool:
        """Return whether a step is in the cubes."""
        return step in self.steps

    def place(self, step: int) -> int:
        """Return the place of a step on its axis."""
        return self.steps[step]

    def steps_by_rank(self) -> dict[int, npt.NDArray[np.int64]]:
        """Return the steps that the cubes have of each rank: (n,), int64, ascending."""
        steps = np.array([*self.steps], np.int64)
        order = np.argsort(steps)
        is_held = (self.fingerprints != "")[order].T
        return {rank: steps[order][is_held[place]] for rank, place in self.ranks.items()}

    def generations(self) -> dict[int, dict[int, str]]:
        """Return the generations of each step that is whole in the cubes, by step and rank."""
        half = set(self.state.rewriting)
        return {
            step: {rank: name for rank, name in zip(self.ranks, names, strict=True) if name}
            for place, (step, names) in enumerate(zip(self.steps, self.fingerprints.tolist(), strict=True))
            if place not in half
        }

    def fingerprint(self, key: StepKey) -> str:
        """Return the generation of a step that is in the cubes; "" for none."""
        if key.step not in self.steps or key.rank not in self.ranks:
            return ""
        return str(self.fingerprints[self.steps[key.step], self.ranks[key.rank]])

    def add_ranks(self, ranks: Iterable[int]) -> None:
        """Append the ranks that are new to their axis."""
        for rank in ranks:
            self.ranks.setdefault(rank, len(self.ranks))
        self._grow()

    def add_steps(self, steps: Sequence[int]) -> list[int]:
        """Append new steps to their axis, and return their places."""
        places = list(range(len(self.steps), len(self.steps) + len(steps)))
        self.steps.update(zip(steps, places, strict=True))
        self._grow()
        return places

    def add_tensors(self, keys: Iterable[TensorKey]) -> None:
        """Append the tensors that are new to their axis, and write that axis to the store."""
        before = len(self.axis)
        self.axis.extend(keys)
        if len(self.axis) == before:
            return
        axis = self.axis.keys
        self.names += unique_names(axis[before:], set(self.names))
        written: dict[str, bytes] = {}
        (length,) = {layout.chunk[0] for layout in self.layouts.keys.values()}
        for number in range(before // length, ceil_div(len(axis), length)):
            part = slice(number * length, (number + 1) * length)
            own = axis[part]
            columns: dict[str, Sequence[Any]] = dict(zip(KEY_FIELDS, zip(*own, strict=True), strict=True))
            columns |= {"name": [key.name for key in own], "tensor": self.names[part]}
            for name, layout in self.layouts.keys.items():
                values = np.array(columns[name], layout.dtype)
                written[f"{GROUP}/{layout.key((number,))}"] = layout.encode(values)
        self.objects.put_many(written)

    def jobs(self, place: int, step: int, ranks: set[int]) -> Iterator[ConsolidateJob]:
        """Yield the tasks that write one step: one for each chunk of ranks.

        A chunk of which no rank is left has a task, too: what was written for it before must go.
        """
        wide = self.state.grid.ranks
        for chunk in range(ceil_div(len(self.ranks), wide)):
            places = ((rank, divmod(self.ranks[rank], wide)) for rank in sorted(ranks))
            yield ConsolidateJob(
                store=self.objects.address,
                writer=self.writer_id,
                grid=self.state.grid,
                width=len(self.axis),
                step=step,
                place=place,
                rank_chunk=chunk,
                members=tuple((rank, within) for rank, (own, within) in places if own == chunk),
            )

    def clear(self, place: int) -> None:
        """Reset what is known of a step, before the results of its tasks are recorded."""
        self.fingerprints[place] = ""
        for layout in self.layouts.shared:
            block, within = divmod(place, layout.chunk[0])
            self._block(layout, block)[within] = layout.fill

    def record(self, result: Consolidated) -> None:
        """Enter the result of a task into what steps share."""
        job = result.job
        first = job.rank_chunk * job.grid.ranks
        for rank, within in job.members:
            if rank not in result.fingerprints:
                continue
            self.fingerprints[job.place, first + within] = result.fingerprints[rank]
            values = (result.fingerprints[rank], result.statuses[rank], *result.totals[rank])
            for layout, value in zip(self.layouts.tables.values(), values, strict=True):
                block, number = divmod(job.place, layout.chunk[0])
                self._block(layout, block)[number, first + within] = value
            aggregate = self.layouts.aggregate
            block, number = divmod(job.place, aggregate.chunk[0])
            self._block(aggregate, block)[number, first + within] = result.aggregates[rank]
        ranks = slice(first, min(first + job.grid.ranks, len(self.ranks)))
        for layout, counts in zip(self.layouts.anomalies.values(), result.anomalies, strict=True):
            block, number = divmod(job.place, layout.chunk[0])
            self._block(layout, block)[number, ranks, : job.width] = counts[: ranks.stop - first]

    def begin_rewriting(self, steps: Iterable[int]) -> None:
        """Tell readers not to trust what the cubes hold of these steps, until they are published."""
        begun = {self.place(step) for step in steps}
        blocks = {place // self.state.grid.steps for place in begun} & {*range(self.state.full_blocks)}
        for block in blocks:
            self.uncuttable.pop(block, None)
        self.state = structs.replace(
            self.state,
            rewrites=self.state.rewrites + 1,
            rewriting=tuple(sorted({*self.state.rewriting, *begun})),
            uncut=self._uncut(blocks),
        )
        self._write_metadata()

    def publish(self, places: Sequence[int]) -> None:
        """Write what these steps share with others, and then the metadata, which makes them visible."""
        written = self._empty_tables()
        for layout in self.layouts.shared:
            for block in sorted({place // layout.chunk[0] for place in places}):
                values = self._block(layout, block)
                for index in layout.keys(values.shape):
                    key = f"{GROUP}/{layout.key((block, *index[1:]))}"
                    written[key] = layout.encode(values[_part(index, layout.chunk)])
        written |= _chunks(self.layouts.steps, np.array([*self.steps], np.int64), places)
        if len(self.ranks) > self.state.ranks:
            written |= _chunks(self.layouts.ranks, np.array([*self.ranks], np.int64), self.ranks.values())
        self.objects.put_many(written)
        # Only the blocks that the next step will be in.
        last = {(layout.path, max(places) // layout.chunk[0]) for layout in self.layouts.shared}
        self._blocks = {place: self._blocks[place] for place in last & self._blocks.keys()}
        left = tuple(place for place in self.state.rewriting if place not in places)
        self.state = structs.replace(
            self.state,
            rewriting=left,
            steps=len(self.steps),
            ranks=len(self.ranks),
            tensors=len(self.axis),
            uncut=self._uncut(range(self.state.full_blocks, len(self.steps) // self.state.grid.steps)),
        )
        self._write_metadata()

    def publish_cut(self, block: int) -> None:
        """Tell readers that the cubes by tensor hold a block of steps."""
        left = tuple(other for other in self.state.uncut if other != block)
        self.state = structs.replace(self.state, uncut=left)
        self._write_metadata()

    def _uncut(self, blocks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({*self.state.uncut, *blocks}))

    def _empty_tables(self) -> dict[str, bytes]:
        """Return empty objects for new chunks of ranks, in blocks of steps that are published already."""
        wide = self.state.grid.ranks
        new = range(ceil_div(self.state.ranks, wide), ceil_div(len(self.ranks), wide))
        return {
            f"{GROUP}/{layout.key((block, chunk, 0)[: len(layout.dimensions)])}": layout.encode(layout.full())
            for layout in self.layouts.of_ranks
            for block in range(ceil_div(self.state.steps, layout.chunk[0]))
            for chunk in new
        }

    def _write_metadata(self) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.state = structs.replace(self.state, revision=self.state.revision + 1, consolidated_at=now)
        self.objects.put(_METADATA, metadata.encode(self.state.document()))

    def _block(self, layout: ArrayLayout, block: int) -> npt.NDArray[Any]:
        lengths = {
            "step": layout.chunk[0],
            "rank": len(self.ranks),
            "tensor": len(self.axis),
            "statistic": len(STATISTICS),
        }
        shape = tuple(lengths[axis] for axis in layout.dimensions)
        values = self._blocks.get((layout.path, block))
        if values is None and block * shape[0] < self.state.steps:
            values = ConsolidatedCubes(self.objects, self.state).steps_block(layout, block)
        if values is None or values.shape != shape or not values.flags.writeable:
            room = np.full(shape, layout.fill, layout.dtype)
            if values is not None:
                room[tuple(slice(length) for length in values.shape)] = values
            values = room
        self._blocks[layout.path, block] = values
        return values

    def _grow(self) -> None:
        grown = np.full((len(self.steps), len(self.ranks)), "", object)
        before = self.fingerprints
        grown[: before.shape[0], : before.shape[1]] = before
        self.fingerprints = grown


def _part(index: Sequence[int], chunk: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(number * n, (number + 1) * n) for number, n in zip(index, chunk, strict=True))


def _chunks(layout: ArrayLayout, values: npt.NDArray[Any], places: Iterable[int]) -> dict[str, bytes]:
    touched = {place // layout.chunk[0] for place in places}
    return {
        f"{GROUP}/{key}": layout.encode(values[_part(index, layout.chunk)])
        for index, key in layout.keys(values.shape).items()
        if index[0] in touched
    }


def _remove(objects: ObjectStore) -> None:
    objects.delete(_METADATA)
    kept = (CHANGED.rpartition("/")[2] + "/", "lease", "zarr.json")
    names = [name for name in objects.sizes(GROUP) if not name.startswith(kept)]
    with ThreadPoolExecutor(_DELETIONS_AT_ONCE) as threads:
        for _ in threads.map(lambda name: objects.delete(f"{GROUP}/{name}"), names):
            pass


#: Objects that are held in memory at once; each has the commits of up to 256 ranks.
_AT_ONCE = 8

#: Place of a step, and number of a chunk of ranks.
_Index: TypeAlias = tuple[int, int]


def copy_commits(
    writer: CubeWriter,
    keys: Iterable[StepKey],
    commits: Mapping[StepKey, Commit],
    appended: Collection[int] = (),
) -> None:
    """Make the copies of these commits what the commits are; empty those of commits that cannot be read.

    Steps that the cubes do not have are passed over, and so are all if the cubes are of a version without
    copies.

    Args:
        writer: of the cubes.
        keys: whose commits were read, or are known to be gone.
        commits: what was read.
        appended: the steps that are new in the cubes. What else stands at their places is of no use.

    Raises:
        StoreError: the store refused.
    """
    layout = writer.layouts.commits
    texts: dict[_Index, dict[int, str]] = {}
    """The copies by the object that they are in, and by their place along its ranks."""
    for key in keys:
        if key.step is not None and writer.has(key.step) and key.rank in writer.ranks:
            chunk, within = divmod(writer.ranks[key.rank], writer.state.grid.ranks)
            text = commits[key].data.decode() if key in commits else ""
            texts.setdefault((writer.place(key.step), chunk), {})[within] = text
    new_places = {writer.place(step) for step in appended}
    indexes = list(texts)
    for start in range(0, len(indexes), _AT_ONCE):
        names = {index: f"{GROUP}/{layout.key(index)}" for index in indexes[start : start + _AT_ONCE]}
        held = writer.objects.get_many([name for index, name in names.items() if index[0] not in new_places])
        written = {}
        for index, name in names.items():
            copies = _decoded(layout, held.get(name), name)
            before = copies.copy()
            for within, text in texts[index].items():
                copies[0, within] = text
            if name not in held or (copies != before).any():
                written[name] = layout.encode(copies)
        writer.objects.put_many(written)


def _decoded(layout: ArrayLayout, data: bytes | None, name: str) -> npt.NDArray[Any]:
    try:
        return layout.decode(data, name).copy()
    except DamagedStore:
        return layout.full()


#: Checks that nobody else can write, and renews the lease; with `in_time`, only if it is due.
KeepLease: TypeAlias = Callable[..., None]


def cut_blocks(writer: CubeWriter, run: RunJobs, keep: KeepLease, limit: int = 0) -> None:
    """Write the blocks that the cubes by tensor lack, and publish each of them.

    A block with a damaged cube is left out, and not tried again by this writer before it is written again.

    Args:
        writer: of the cubes.
        run: runs the tasks.
        keep: called before each write, and during long work.
        limit: write at most this many blocks; 0 for all.

    Raises:
        LeaseHeld: another process writes the cubes.
        StoreError: the store refused.
    """
    state, grid, store = writer.state, writer.state.grid, writer.objects.address
    half = {place // grid.steps for place in state.rewriting}
    lacking = [block for block in state.uncut if block not in half and block not in writer.uncuttable]
    objects = [
        *product(
            writer.layouts.by_tensor,
            range(ceil_div(state.ranks, grid.ranks)),
            range(ceil_div(state.tensors, grid.tensors)),
        )
    ]
    for block in lacking[: limit or None]:
        damages = []
        reader = ConsolidatedCubes(writer.objects, writer.state)
        keep()
        jobs = [CutJob(store, grid, name, block, ranks, tensors) for name, ranks, tensors in objects]
        for result in run(cut_by_tensor, jobs):
            keep(in_time=True)
            if damage := result.damage or _missing(reader, result):
                damages.append(damage)
        if damages:
            writer.uncuttable[block] = damages[0]
            continue
        keep()
        writer.publish_cut(block)


def _missing(reader: ConsolidatedCubes, result: CutBlock) -> str:
    job = result.job
    layout = reader.layouts.per_step[job.name]
    try:
        for place in result.absent:
            reader.check_absent(layout, (place, job.rank_chunk, job.tensor_chunk))
    except DamagedStore as exc:
        return exc.message
    return ""


def write_steps(
    writer: CubeWriter, run: RunJobs, keep: KeepLease, plan: RoundPlan, commits: Mapping[StepKey, Commit]
) -> dict[StepKey, tuple[str, str]]:
    """Write what a plan says; return the generations whose tables turned out to be damaged, and why.

    Memory: the results of the tasks of one block, and as much as `CubeWriter`.

    Args:
        writer: of the cubes.
        run: runs the tasks.
        keep: called before each write, and during long work.
        plan: what to write.
        commits: those that the plan was made for; the others have not changed.

    Raises:
        LeaseHeld: another process writes the cubes.
        StoreError: the store refused.
    """
    writer.add_ranks(sorted({key.rank for key in plan.fresh}))
    damaged: dict[StepKey, tuple[str, str]] = {}
    write = partial(_write_batch, writer, run, keep, commits=commits)
    # Block by block: a rank that comes late may change every step.
    for steps in writer.in_blocks(plan.rewrite):
        writer.begin_rewriting(steps)
        damaged |= write({writer.place(step): step for step in steps}, ranks_of=plan.rewrite, appended=())
    left = sorted(plan.append)
    while left:
        # Without any known tensor, one step alone: the others then do not come back as unknown.
        count = writer.room if len(writer.axis) else 1
        batch, left = left[:count], left[count:]
        places = dict(zip(writer.add_steps(batch), batch, strict=True))
        damaged |= write(places, ranks_of=plan.append, appended=batch)
    return damaged


def _write_batch(
    writer: CubeWriter,
    run: RunJobs,
    keep: KeepLease,
    places: Mapping[int, int],
    *,
    commits: Mapping[StepKey, Commit],
    ranks_of: Mapping[int, set[int]],
    appended: Collection[int],
) -> dict[StepKey, tuple[str, str]]:
    damaged: dict[StepKey, tuple[str, str]] = {}
    jobs: list[ConsolidateJob] = []
    for place, step in places.items():
        writer.clear(place)
        jobs += writer.jobs(place, step, ranks_of[step])
    if len(jobs) == 1:
        jobs = [replace(jobs[0], extends=True)]
    while jobs:
        keep()
        unknown = []
        for result in run(consolidate, jobs):
            keep(in_time=True)
            if isinstance(result, UnknownTensors):  # it has to run again on a longer axis of tensors
                unknown.append(result)
                continue
            writer.add_tensors(result.keys)
            writer.record(result)
            for rank, reason in result.damaged.items():  # not to be tried in every round
                if (key := StepKey(rank, result.job.step)) in commits:
                    damaged[key] = commits[key].fingerprint, reason
        unknown.sort(key=lambda result: (result.job.place, result.job.rank_chunk))
        writer.add_tensors(key for result in unknown for key in result.keys)
        jobs = [replace(result.job, width=len(writer.axis)) for result in unknown]
    keep()
    keys = [StepKey(rank, step) for step in places.values() for rank in sorted(ranks_of[step])]
    copy_commits(writer, [key for key in keys if key in commits], commits, appended)
    writer.publish(list(places))
    return damaged
