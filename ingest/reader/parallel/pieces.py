"""The pieces of one tensor: the same tensor in the same step of every rank that has it."""

from __future__ import annotations

import numpy as np

from ingest.reader.indexed_step import IndexedStep
from ingest.reader.parallel.mesh import Coordinates
from workers.errors import UsageError
from workers.store.consolidated.blocks import TensorKey, tensors_of


def rows_of_ranks(step: IndexedStep, row: int) -> tuple[list[tuple[IndexedStep, int]], list[Coordinates]]:
    """Return the step and the row of a tensor on every rank that has it, by rank, and where these ranks are.

    Reads the index of the step of every rank.

    Raises:
        UsageError: the tensor was not opened through a store.
    """
    source = step.catalog
    if source is None:
        raise UsageError("other ranks are not known: open the tensor through a store")
    key = _key_of(step, row)
    pieces: list[tuple[IndexedStep, int]] = []
    ranks = []
    for rank in source.ranks:
        try:
            own = step if rank == step.key.rank else source.step(rank, step.key.step)
        except UsageError:  # this rank does not have the step
            continue
        rows, keys = tensors_of(own.tables)
        if key in keys:
            pieces.append((own, int(rows[keys.index(key)])))
            ranks.append(rank)
    places = source.coordinates(ranks)
    return pieces, [places.get(rank, {}) for rank in ranks]


def _key_of(step: IndexedStep, row: int) -> TensorKey:
    rows, keys = tensors_of(step.tables)
    return keys[int(np.flatnonzero(rows == row)[0])]
