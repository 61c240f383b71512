"""A statistic of several tensors together, by rank and step, from the consolidated cubes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.reader.block_filter import BlockFilter
from ingest.reader.cubes.consolidated import ConsolidatedCubes, open_cubes
from ingest.reader.cubes.cube_columns import aggregated_steps, aggregates
from ingest.reader.snapshot import Snapshot
from ingest.reader.step_statistics import held_places
from ingest.reader.tensor_filter import FilterFields
from workers.errors import DamagedStore


@dataclass(frozen=True, slots=True, eq=False)
class RankValues:
    """A statistic of several tensors together, in one step."""

    ranks: npt.NDArray[np.int64]
    """Ascending."""
    values: npt.NDArray[np.float64]
    """By the same ranks; NaN if it is not known."""


def of_all_tensors(snapshot: Snapshot, statistic: str) -> dict[int, RankValues]:
    """Return a statistic of all tensors together by step, by its default aggregate.

    Takes one or two requests for each 32 steps and 256 ranks. Steps that the cubes do not hold as they are
    committed are left out; all of them, if the cubes are of version 1, or damaged.
    """
    return _from_cubes(snapshot, lambda cubes, places: _of_places(aggregates(cubes, statistic), places))


def of_named_tensors(snapshot: Snapshot, statistic: str, pattern: str) -> dict[int, RankValues]:
    """Return a statistic of the tensors whose names match a glob together by step, by its default aggregate.

    Takes one or two requests for each step, 256 ranks and 8192 tensors, and each part of the statistic. Steps
    that the cubes do not hold as they are committed are left out; all of them, if the cubes are damaged, or
    know nothing of such tensors.
    """

    def read(cubes: ConsolidatedCubes, places: Sequence[int]) -> npt.NDArray[np.float64] | None:
        fields: FilterFields = {"name": pattern}
        tensors = np.flatnonzero(BlockFilter(fields, cubes.axis).of_names(len(cubes.axis)))
        if not tensors.size:
            return None
        values = aggregated_steps(cubes, places, statistic, tensors)
        return None if np.isnan(values).all() else values

    return _from_cubes(snapshot, read)


def _of_places(
    values: npt.NDArray[np.float64] | None, places: Sequence[int]
) -> npt.NDArray[np.float64] | None:
    return None if values is None else values[list(places)]


def _from_cubes(
    snapshot: Snapshot,
    read: Callable[[ConsolidatedCubes, Sequence[int]], npt.NDArray[np.float64] | None],
) -> dict[int, RankValues]:
    """Return values by step of those steps that the cubes hold as they are committed.

    Args:
        snapshot: which steps.
        read: returns the values of these places of steps, (step, rank), by places; None if the cubes do not
            have them.
    """
    try:
        cubes = open_cubes(snapshot.store.objects)
        if cubes is None:
            return {}
        place_of_rank = {rank: place for place, rank in enumerate(cubes.ranks.tolist())}
        held = held_places(cubes, snapshot, snapshot.steps)
        values = read(cubes, list(held.values())) if held else None
        if values is None or not cubes.is_current():
            return {}
    except DamagedStore:
        return {}  # everything in the cubes is also in the indexes
    known = {}
    for step, of_ranks in zip(held, values, strict=True):
        ranks = list(snapshot.of_step(step))
        known[step] = RankValues(np.array(ranks, np.int64), of_ranks[[place_of_rank[rank] for rank in ranks]])
    return known
