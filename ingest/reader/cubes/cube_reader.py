"""Read the consolidated cubes without zarr-python or xarray: with fewer requests, and in less time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.cubes import shard_indexes
from ingest.reader.cubes.array_parts import ArrayPart, batches
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import counted
from workers.arrays.aggregate import STATISTICS
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.statistics import FIELDS, NON_FINITE_FIELDS
from workers.errors import DamagedStore
from workers.model import StepKey, ceil_div
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
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore

if TYPE_CHECKING:
    import xarray as xr


@dataclass(eq=False)
class CubeReader:
    """The cubes as of when this was opened. A place is a position on one of their axes."""

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
    def steps(self) -> npt.NDArray[np.int64]:
        """The step at each place, (step,)."""
        steps: npt.NDArray[np.int64] = self._read(self.layouts.steps, (self.state.steps,))
        return steps

    @cached_property
    def ranks(self) -> npt.NDArray[np.int64]:
        """The rank at each place, (rank,)."""
        ranks: npt.NDArray[np.int64] = self._read(self.layouts.ranks, (self.state.ranks,))
        return ranks

    @cached_property
    def axis(self) -> TensorAxis:
        """The tensors, by place."""
        return read_axis(self.objects, self.layouts, self.state.tensors)

    @cached_property
    def tensors(self) -> list[str]:
        """A unique name for each tensor, (tensor,)."""
        names = self._read(self.layouts.keys["tensor"], (self.state.tensors,))
        return [str(name) for name in names]

    def table(self, name: str) -> npt.NDArray[Any]:
        """Return an array with one value for each step and rank, (step, rank). It is read once and kept."""
        if name not in self._tables:
            shape = (self.state.steps, self.state.ranks)
            self._tables[name] = self._read(self.layouts.tables[name], shape)
        return self._tables[name]

    def is_current(self) -> bool:
        """Return whether the consolidator has not begun to rewrite a step since the cubes were opened."""
        latest = parse_state(self.objects.get(f"{GROUP}/zarr.json"))
        own = self.state
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
        for batch in batches({name: self._part(name, place) for name in names}):
            objects = self._objects_of(batch.values())
            for name, part in batch.items():
                if name not in NON_FINITE_FIELDS:
                    yield part.decode(objects)[0]
                    continue
                block, within = divmod(place, self.state.grid.steps)
                if self._kept_counts(name, block) is None:
                    counts = part.decode(objects)
                    # Most blocks are zeros, which need no memory.
                    kept = counts if counts.any() else np.broadcast_to(np.int64(0), counts.shape)
                    self._anomalies[name] = (block, kept)
                yield self._anomalies[name][1][within]

    def _part(self, name: str, place: int) -> ArrayPart:
        """Return the part of a cube that one step takes; without objects if its block is kept."""
        if name in NON_FINITE_FIELDS:
            layout, block = self.layouts.anomalies[name], place // self.state.grid.steps
            kept = self._kept_counts(name, block)
            if kept is not None:
                return ArrayPart(layout, kept.shape, {}, block)
            return ArrayPart.of(layout, self._shape_of_steps(layout), first=block)
        shape: tuple[int, ...] = (1, self.state.ranks, self.state.tensors)
        if name == "digest":
            shape = (*shape, DIGEST_BYTES)
        return ArrayPart.of(self.layouts.per_step[name], shape, first=place)

    def _kept_counts(self, name: str, block: int) -> npt.NDArray[Any] | None:
        """Return the counts of a block of steps if it is the one that was read last, else None."""
        kept_block, counts = self._anomalies.get(name, (-1, None))
        return counts if kept_block == block else None

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
        block = Block(
            int(self.steps[place]), tuple(ranks), row, np.moveaxis(statistics, 0, -1), digest, fields
        )
        return block.of_ranks(tuple(sorted(ranks)))

    def anomalies(self, name: str) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield one count of non-finite elements in blocks of several steps, each with its first place.

        Args:
            name: `nan_count`, `pos_inf_count` or `neg_inf_count`.

        Yields:
            The place of the first step, and the counts, (step, rank, tensor); -1 if a rank does not have the
            tensor. Memory: 256 MiB, or one block.
        """
        per_block = self.state.grid.steps
        for first in range(0, self.state.steps, per_block):
            counts = self.anomaly_block(name, first // per_block)
            yield first, counts[: self.state.steps - first]

    def anomaly_block(self, name: str, block: int) -> npt.NDArray[np.int64]:
        """Return one block of a count of non-finite elements, (step of the block, rank, tensor)."""
        counts: npt.NDArray[np.int64] = self.steps_block(self.layouts.anomalies[name], block)
        return counts

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
            left = min(self.state.tensors - tensor_chunk * tensors, tensors)
            if key not in objects:
                continue  # none of its ranks has any of its tensors
            self.keep_index(layout, block, key, objects[key])
            parts = islice(layout.inner_parts(objects[key], key), ceil_div(left, width))
            for number, part in enumerate(parts):
                known = left - number * width
                yield rank_chunk * ranks, part if known >= width else part[..., :known]

    def known_index(self, key: str) -> bytes | None:
        """Return where the inner chunks of an object are if that was read before, as its last bytes tell."""
        return None if self.objects.is_local else shard_indexes.KNOWN.get(self._named(key))

    def keep_index(self, layout: ArrayLayout, block: int, key: str, end: bytes) -> None:
        """Keep where the inner chunks of an object are, for `known_index`.

        Nothing is kept of a block that is not full: each further step writes it again, without a sign of it.

        Args:
            layout: of the array, which has inner chunks or none.
            block: number of the block of steps.
            key: the object.
            end: its last bytes, or all of it.
        """
        is_full = (block + 1) * layout.chunk[0] <= self.state.steps
        if layout.inner and is_full and not self.objects.is_local:
            shard_indexes.KNOWN.keep(self._named(key), end[-layout.index_nbytes :])

    def _named(self, key: str) -> tuple[StoreAddress, str, int, str]:
        return (self.objects.address, self.state.epoch, self.state.rewrites, key)

    def steps_block(self, layout: ArrayLayout, block: int) -> npt.NDArray[Any]:
        """Return one block of steps of an array, (step of the block, rank) or (..., rank, tensor)."""
        values: npt.NDArray[Any] = self._read(layout, self._shape_of_steps(layout), first=block)
        return values

    def _shape_of_steps(self, layout: ArrayLayout) -> tuple[int, ...]:
        """Return the shape of one block of steps of an array."""
        lengths = {"rank": self.state.ranks, "tensor": self.state.tensors, "statistic": len(STATISTICS)}
        return (layout.chunk[0], *(lengths[axis] for axis in layout.dimensions[1:]))

    def to_xarray(self) -> xr.Dataset:
        """Return the cubes as they are now as a dataset of dask arrays, as `xarray.open_zarr` does."""
        import xarray as xr  # deferred: takes 0.7 s to import

        url = f"{self.objects.address.url}/{GROUP}"
        options = json.loads(self.objects.address.options) if "://" in url else None
        dataset: xr.Dataset = xr.open_zarr(url, storage_options=options)
        return dataset

    def left_out(self, *, include_partial: bool = False) -> list[LeftOut]:
        """Return the steps in the cubes that answers leave out: partial ones, and those being rewritten."""
        left_out = []
        rewriting = set(self.state.rewriting)
        status, quarantined = self.table("status"), self.table("quarantined")
        for place, number in zip(*np.nonzero(status != ""), strict=True):
            reason = ""
            if int(place) in rewriting:
                reason = "being written again"
            elif status[place, number] != "complete" and not include_partial:
                files = int(quarantined[place, number])
                reason = "partial" + f": {counted(files, 'file')} quarantined" * (files > 0)
            if reason:
                key = StepKey(int(self.ranks[number]), int(self.steps[place]))
                left_out.append(LeftOut(key, reason))
        return sorted(left_out, key=lambda left: left.key.order)

    @cached_property
    def layouts(self) -> CubeLayouts:
        """The layouts of the arrays."""
        return CubeLayouts(self.state.grid)

    def _read(self, layout: ArrayLayout, shape: tuple[int, ...], first: int | None = None) -> Any:
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
        ranks. The tables of (step, rank) have all of their chunks.

        Takes one request for each 8192 tensors of the steps in the chunk.

        Args:
            layout: of the array.
            position: of the chunk in the array.

        Raises:
            DamagedStore: the object is missing.
        """
        if layout.dimensions[: len(CUBE)] == CUBE:
            first, rank_chunk, tensor_chunk = position[0] * layout.chunk[0], position[1], position[2]
            places = {*range(first, min(first + layout.chunk[0], self.state.steps))}
            places.difference_update(self.state.rewriting)
            if not any(tensor_chunk in self._written_chunks(place, rank_chunk) for place in places):
                return
        raise DamagedStore(f"{GROUP}/{layout.key(tuple(position))}: missing", hint=REBUILD_HINT)

    def _written_chunks(self, place: int, rank_chunk: int) -> Collection[int]:
        """Return the chunks of tensors that were written for a step and a chunk of ranks.

        Raises:
            DamagedStore: `row` lacks tensors, so one of its own chunks is missing.
        """
        known = (place, rank_chunk)
        if known not in self._written:
            self._written[known] = self._find_written(place, rank_chunk)
        return self._written[known]

    def _find_written(self, place: int, rank_chunk: int) -> Collection[int]:
        grid, row = self.state.grid, self.layouts.per_step["row"]
        ranks = slice(rank_chunk * grid.ranks, (rank_chunk + 1) * grid.ranks)
        tensors, others = (self.table(name)[place, ranks] for name in ("tensors", "statistics_only"))
        expected = np.maximum(tensors, 0) + np.maximum(others, 0)
        if not expected.any():
            return ()
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
        return {chunk for chunk, key in keys.items() if key in objects}


def with_nan(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values of a cube with NaN for what is unknown, for which counts have -1.

    Counts that are all known stay as they are.
    """
    if values.dtype.kind != "i" or (values.size and values.min() >= 0):
        return values
    return np.where(values < 0, np.nan, values)
