"""The consolidated view, read without zarr-python or xarray: what cross-rank answers are quick by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.snapshot import LeftOut
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
    """The cubes as they were when this was opened. Steps that are taken in later are not in it.

    Places are those of the axes of the view; `steps` and `ranks` say which step and rank stands where.
    """

    objects: ObjectStore
    state: CubeState
    _tables: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        state = self.state
        return f"<{type(self).__name__} {state.steps} steps x {state.ranks} ranks x {state.tensors} tensors>"

    @cached_property
    def steps(self) -> npt.NDArray[np.int64]:
        """Which step stands at each place, (step,)."""
        steps: npt.NDArray[np.int64] = self._read(self._cubes.steps, (self.state.steps,))
        return steps

    @cached_property
    def ranks(self) -> npt.NDArray[np.int64]:
        """Which rank stands at each place, (rank,)."""
        ranks: npt.NDArray[np.int64] = self._read(self._cubes.ranks, (self.state.ranks,))
        return ranks

    @cached_property
    def axis(self) -> TensorAxis:
        """The tensors, by place."""
        return read_axis(self.objects, self._cubes, self.state.tensors)

    @cached_property
    def tensors(self) -> list[str]:
        """A name for each tensor that occurs once, (tensor,)."""
        names = self._read(self._cubes.keys["tensor"], (self.state.tensors,))
        return [str(name) for name in names]

    def table(self, name: str) -> npt.NDArray[Any]:
        """Return what there is one value of for each step and rank, (step, rank); read once."""
        if name in self._tables:
            return self._tables[name]
        shape = (self.state.steps, self.state.ranks)
        self._tables[name] = self._read(self._cubes.tables[name], shape)
        return self._tables[name]

    def is_current(self) -> bool:
        """Whether no step that this holds was begun to be written again since it was opened."""
        found = parse_state(self.objects.get(f"{GROUP}/zarr.json"))
        mine = self.state
        return found is not None and (found.epoch, found.rewrites) == (mine.epoch, mine.rewrites)

    def cube(self, name: str, place: int) -> npt.NDArray[Any]:
        """Return one step of one cube, (rank, tensor) or (rank, tensor, digest_byte).

        Requests: one for each 256 ranks and 8192 tensors.

        Raises:
            DamagedStore: it is damaged.
        """
        shape = (1, self.state.ranks, self.state.tensors)
        if name in ANOMALY_FIELDS:
            block, within = divmod(place, self.state.grid.steps)
            found: npt.NDArray[Any] = self.anomaly_block(name, block)[within]
            return found
        layout = self._cubes.per_step[name]
        full = (*shape, DIGEST_BYTES) if name == "digest" else shape
        one: npt.NDArray[Any] = self._read(layout, full, first=place)[0]
        return one

    def block(self, place: int) -> Block:
        """Return everything of one step, with all ranks of the view.

        Raises:
            DamagedStore: it is damaged.
        """
        ranks = [int(rank) for rank in self.ranks]
        statistics = np.empty((len(ranks), self.state.tensors, len(FIELDS)))
        for number, name in enumerate(FIELDS):
            values = self.cube(name, place)
            is_count = values.dtype.kind == "i"
            statistics[:, :, number] = np.where(values < 0, np.nan, values) if is_count else values
        row, digest = self.cube("row", place), self.cube("digest", place)
        order = np.argsort(ranks)
        return Block(
            int(self.steps[place]),
            tuple(ranks[place] for place in order),
            row[order],
            statistics[order],
            digest[order],
        )

    def anomalies(self, name: str) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield a count of what is not finite, for several steps at a time: the first place, and the counts.

        Args:
            name: `nan_count`, `pos_inf_count` or `neg_inf_count`.

        Yields:
            (step, rank, tensor), -1 for what a rank does not have. Memory: 256 MiB, or one block.
        """
        per_block = self.state.grid.steps
        for block in range(-(-self.state.steps // per_block)):
            counts = self.anomaly_block(name, block)
            yield block * per_block, counts[: self.state.steps - block * per_block]

    def anomaly_block(self, name: str, block: int) -> npt.NDArray[np.int64]:
        """Return one block of a count of what is not finite, (step of the block, rank, tensor)."""
        counts: npt.NDArray[np.int64] = self.steps_block(self._cubes.anomalies[name], block)
        return counts

    def steps_block(self, layout: ArrayLayout, block: int) -> npt.NDArray[Any]:
        """Return one block of steps of an array, (step of the block, rank) or (..., rank, tensor)."""
        shape = (layout.chunk[0], self.state.ranks, self.state.tensors)[: len(layout.dimensions)]
        values: npt.NDArray[Any] = self._read(layout, shape, first=block)
        return values

    def to_xarray(self) -> xr.Dataset:
        """Return the view as it is now as a dataset of dask arrays, as `xarray.open_zarr` gives it."""
        import xarray as xr

        url = f"{self.objects.address.url}/{GROUP}"
        options = json.loads(self.objects.address.options) if "://" in url else None
        dataset: xr.Dataset = xr.open_zarr(url, storage_options=options)
        return dataset

    def left_out(self, *, include_partial: bool = False) -> list[LeftOut]:
        """Return what is in the view and in no answer: partial steps, and those that are written again."""
        found = []
        again = set(self.state.rewriting)
        status, quarantined = self.table("status"), self.table("quarantined")
        for place, number in zip(*np.nonzero(status != ""), strict=True):
            reason = ""
            if int(place) in again:
                reason = "being written again"
            elif status[place, number] != "complete" and not include_partial:
                files = int(quarantined[place, number])
                reason = "partial" + f": {files} files quarantined" * (files > 0)
            if reason:
                key = StepKey(int(self.ranks[number]), int(self.steps[place]))
                found.append(LeftOut(key, reason))
        return sorted(found, key=lambda one: one.key.order)

    @cached_property
    def _cubes(self) -> Cubes:
        return Cubes(self.state.grid)

    def _read(self, layout: ArrayLayout, shape: tuple[int, ...], first: int | None = None) -> Any:
        """Return an array; with `first`, that chunk along its first axis alone."""
        shift = first or 0
        indexes = layout.keys(shape if first is None else (layout.chunk[0], *shape[1:]))
        keys = {index: f"{GROUP}/{layout.key((index[0] + shift, *index[1:]))}" for index in indexes}
        found = self.objects.get_many(list(keys.values()))
        if len(keys) == 1:
            ((_, key),) = keys.items()
            return layout.decode(self._found(found, key, layout), key)[tuple(map(slice, shape))]
        whole = np.empty(shape, layout.dtype)
        for index, key in keys.items():
            place = tuple(
                slice(i * n, min((i + 1) * n, length))
                for i, n, length in zip(index, layout.chunk, shape, strict=True)
            )
            part = layout.decode(self._found(found, key, layout), key)
            whole[place] = part[tuple(slice(p.stop - p.start) for p in place)]
        return whole

    def _found(self, found: dict[str, bytes], key: str, layout: ArrayLayout) -> bytes | None:
        if key not in found and len(layout.dimensions) < 3:
            raise DamagedStore(f"{key}: missing", hint=REBUILD_HINT)
        # No rank of a chunk may have had the step, or any of the tensors.
        return found.get(key)
