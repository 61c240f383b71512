"""Writes what follows from the histograms of a step into the cubes: a part of the task `consolidate`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from workers.errors import DamagedStore
from workers.store.commit import Commit
from workers.store.consolidated.blocks import Block
from workers.store.consolidated.cubes import GROUP, CubeLayouts
from workers.store.consolidated.nd_arrays import ArrayLayout
from workers.store.consolidated.sketch_cube import SketchedRows, sketched_rows
from workers.store.objects import ObjectStore
from workers.store.sketches import histograms
from workers.store.tables import Tables


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the cubes that a task writes."""

    place: int
    """Of the step."""
    rank_chunk: int
    members: Mapping[int, int]
    """By rank: its place within the chunk."""


def write_sketches(
    objects: ObjectStore,
    layouts: CubeLayouts,
    part: Part,
    block: Block,
    steps: Mapping[int, tuple[Commit, Tables]],
) -> dict[int, tuple[int, ...]]:
    """Write the object of `sketches` for a part; return by rank the values of `SKETCH_TOTALS`.

    If no tensor has a histogram, no object is left there. Cubes of earlier versions have neither.

    Args:
        objects: the store.
        cubes: the layouts.
        part: what is written.
        block: all tensors of the step, by rank and place on the axis.
        steps: by rank, its commit and its index.

    Raises:
        StoreError: the store refused.
    """
    layout = layouts.sketches
    if layout is None:
        return dict.fromkeys(steps, ())
    sketched = _read(objects, steps)
    has_any = any(len(rank.rows) for rank in sketched.values())
    keys = {
        start: f"{GROUP}/{layout.key((part.place, 0, 0, part.rank_chunk, number))}"
        for number, start in enumerate(range(0, block.row.shape[1], layout.chunk[-1]))
    }
    if has_any:
        for start, key in keys.items():
            objects.put(key, _encoded(layout, part, block, sketched, start))
    else:
        # The step may have had some before it was dumped again.
        objects.delete_many(list(keys.values()))
    return {rank: (len(rows.rows), rows.without) for rank, rows in sketched.items()}


def _read(objects: ObjectStore, steps: Mapping[int, tuple[Commit, Tables]]) -> dict[int, SketchedRows]:
    """Return by rank what the cubes hold; histograms that are damaged count as missing."""
    table = histograms.TABLE
    keys = {
        rank: f"{committed.prefix}/{table.chunk}"
        for rank, (committed, _) in steps.items()
        if table.path in committed.nodes
    }
    chunks = objects.get_many(list(keys.values())) if keys else {}
    sketched = {}
    for rank, (committed, index) in steps.items():
        entries = table.empty()
        if rank in keys:
            chunk, checksums = chunks.get(keys[rank]), committed.record.checksums
            with suppress(DamagedStore):  # `verify` tells; a question that needs them asks the step
                entries = table.decode(committed.nodes[table.path], chunk, str(committed.key), checksums)
        sketched[rank] = sketched_rows(index, entries)
    return sketched


def _encoded(
    layout: ArrayLayout, part: Part, block: Block, sketched: Mapping[int, SketchedRows], start: int
) -> bytes:
    """Return the object that holds the tensors from one place of the axis."""
    whole = layout.full()
    width = whole.shape[-1]
    for number, rank in enumerate(block.ranks):
        rows, places = block.row[number], part.members[rank]
        tensors = np.flatnonzero(rows[start : start + width] >= 0)
        of_rank = sketched[rank]
        where = np.full(int(rows.max(initial=-1)) + 1, -1, np.int64)
        known = of_rank.rows < len(where)
        where[of_rank.rows[known]] = of_rank.of_row[known]
        held = where[rows[start + tensors]]
        has = held >= 0
        # (tensor, sketch, bound) becomes (sketch, bound, tensor)
        whole[0, :, :, places, tensors[has]] = of_rank.values[held[has]]
    return layout.encode(whole)
