"""`cut_by_tensor`: the Dask task that writes a cube of a full block of steps again, cut along the tensors.

It reads the objects of each step and writes them as one. This makes nothing visible: the consolidator writes
the metadata of the cubes afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workers.errors import DamagedStore
from workers.store.consolidated.cubes import GROUP, CubeGrid, CubeLayouts
from workers.store.model import StoreAddress
from workers.store.opening import open_objects


@dataclass(frozen=True, slots=True)
class CutJob:
    """One block of steps of one cube, for one chunk of ranks and one chunk of tensors.

    Memory of the task: 8 bytes for each cell, at most 64 MiB, and the same encoded, twice.
    """

    store: StoreAddress
    grid: CubeGrid
    name: str
    """The cube."""
    block: int
    rank_chunk: int
    tensor_chunk: int


@dataclass(frozen=True, slots=True)
class CutBlock:
    """What became of a block."""

    job: CutJob
    damage: str = ""
    """What is damaged in the objects of its steps; nothing was written then."""
    absent: tuple[int, ...] = ()
    """Places of the steps without an object, rightly or not."""


def cut_by_tensor(job: CutJob) -> CutBlock:
    """Write one cube of a block of steps as one object. Safe to run again.

    Raises:
        StoreError: the store refused.
    """
    objects, layouts = open_objects(job.store), CubeLayouts(job.grid)
    of_steps, by_tensor = layouts.per_step[job.name], layouts.by_tensor[job.name]
    steps = job.grid.steps
    places = range(job.block * steps, (job.block + 1) * steps)
    keys = [f"{GROUP}/{of_steps.key((place, job.rank_chunk, job.tensor_chunk))}" for place in places]
    contents = objects.get_many(keys)
    values = np.empty(by_tensor.chunk, by_tensor.dtype)
    try:
        for number, key in enumerate(keys):
            values[number] = of_steps.decode(contents.get(key), key)[0]
    except DamagedStore as exc:
        return CutBlock(job, exc.message)
    key = by_tensor.key((job.block, job.rank_chunk, job.tensor_chunk))
    objects.put(f"{GROUP}/{key}", by_tensor.encode(values))
    absent = (place for place, name in zip(places, keys, strict=True) if name not in contents)
    return CutBlock(job, absent=tuple(absent))
