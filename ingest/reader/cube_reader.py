"""Read the consolidated cubes without zarr-python or xarray: with fewer requests, and in less time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.snapshot import LeftOut
from ingest.reader.text import counted
from workers.arrays.aggregate import STATISTICS
from workers.arrays.digest import DIGEST_BYTES
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.blocks import Block, TensorAxis
from workers.store.cubes import ANOMALY_FIELDS, GROUP, REBUILD_HINT, Cubes, CubeState, parse_state, read_axis
from workers.store.nd_arrays import ArrayLayout
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

    def __repr__(self) -> str:
        state = self.state
        return f"<{type(self).__name__} {state.steps} steps x {state.ranks} ranks x {state.tensors} tensors>"

    @cached_property
    def steps(self) -> npt.NDArray[np.int64]:
        """The step at each place, (step,)."""
        steps: npt.NDArray[np.int64] = self._read(self.cubes.steps, (self.state.steps,))
        return steps

    @cached_property
    def ranks(self) -> npt.NDArray[np.int64]:
        """The rank at each place, (rank,)."""
        ranks: npt.NDArray[np.int64] = self._read(self.cubes.ranks, (self.state.ranks,))
        return ranks

    @cached_property
    def axis(self) -> TensorAxis:
        """The tensors, by place."""
        return read_axis(self.objects, self.cubes, self.state.tensors)

    @cached_property
    def tensors(self) -> list[str]:
        """A unique name for each tensor, (tensor,)."""
        names = self._read(self.cubes.keys["tensor"], (self.state.tensors,))
        return [str(name) for name in names]

    def table(self, name: str) -> npt.NDArray[Any]:
        """Return an array with one value for each step and rank, (step, rank). It is read once and kept."""
        if name not in self._tables:
            shape = (self.state.steps, self.state.ranks)
            self._tables[name] = self._read(self.cubes.tables[name], shape)
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
        if name in ANOMALY_FIELDS:
            block, within = divmod(place, self.state.grid.steps)
            known = self._anomalies.get(name)
            if known is None or known[0] != block:
                counts = self.anomaly_block(name, block)
                # Most blocks are zeros, which need no memory.
                kept = counts if counts.any() else np.broadcast_to(np.int64(0), counts.shape)
                known = self._anomalies[name] = (block, kept)
            of_step: npt.NDArray[Any] = known[1][within]
            return of_step
        shape: tuple[int, ...] = (1, self.state.ranks, self.state.tensors)
        if name == "digest":
            shape = (*shape, DIGEST_BYTES)
        cube: npt.NDArray[Any] = self._read(self.cubes.per_step[name], shape, first=place)[0]
        return cube

    def block(self, place: int, fields: tuple[str, ...] = FIELDS, *, digests: bool = True) -> Block:
        """Return statistics, rows and digests of one step, for all ranks of the cubes in ascending order.

        Args:
            place: of the step.
            fields: the statistics to read; each is a request or more.
            digests: whether to read digests.

        Raises:
            DamagedStore: a cube is damaged.
        """
        ranks = self.ranks.tolist()
        # One array after the other, because questions are about one statistic at a time.
        statistics = np.empty((len(fields), len(ranks), self.state.tensors))
        for number, name in enumerate(fields):
            values = self.cube(name, place)
            is_count = values.dtype.kind == "i"
            statistics[number] = np.where(values < 0, np.nan, values) if is_count else values
        row = self.cube("row", place)
        digest = self.cube("digest", place) if digests else np.zeros((*row.shape, DIGEST_BYTES), np.uint8)
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
        counts: npt.NDArray[np.int64] = self.steps_block(self.cubes.anomalies[name], block)
        return counts

    def steps_block(self, layout: ArrayLayout, block: int) -> npt.NDArray[Any]:
        """Return one block of steps of an array, (step of the block, rank) or (..., rank, tensor)."""
        lengths = {"rank": self.state.ranks, "tensor": self.state.tensors, "statistic": len(STATISTICS)}
        shape = (layout.chunk[0], *(lengths[axis] for axis in layout.dimensions[1:]))
        values: npt.NDArray[Any] = self._read(layout, shape, first=block)
        return values

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
    def cubes(self) -> Cubes:
        """The layouts of the arrays."""
        return Cubes(self.state.grid, self.state.version)

    def _read(self, layout: ArrayLayout, shape: tuple[int, ...], first: int | None = None) -> Any:
        """Return an array; with `first`, only the chunks at that position along its first axis."""
        shift = first or 0
        indexes = layout.keys(shape if first is None else (layout.chunk[0], *shape[1:]))
        keys = {index: f"{GROUP}/{layout.key((index[0] + shift, *index[1:]))}" for index in indexes}
        objects = self.objects.get_many(list(keys.values()))
        if len(keys) == 1:
            ((_, key),) = keys.items()
            return _decode(objects, key, layout)[tuple(map(slice, shape))]
        whole = np.empty(shape, layout.dtype)
        for index, key in keys.items():
            target = tuple(
                slice(i * n, min((i + 1) * n, length))
                for i, n, length in zip(index, layout.chunk, shape, strict=True)
            )
            whole[target] = _decode(objects, key, layout)[tuple(slice(t.stop - t.start) for t in target)]
        return whole


def _decode(objects: Mapping[str, bytes], key: str, layout: ArrayLayout) -> npt.NDArray[Any]:
    """Decode one chunk.

    A chunk of a cube may be missing, because none of its ranks has the step, or none of its tensors.

    Raises:
        DamagedStore: it is damaged; or it is missing, and not a chunk of a cube.
    """
    if key not in objects and "tensor" not in layout.dimensions:
        raise DamagedStore(f"{key}: missing", hint=REBUILD_HINT)
    return layout.decode(objects.get(key), key)
