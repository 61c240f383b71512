"""A statistic of all tensors together, by rank and step, as the consolidated cubes have it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.reader.consolidated import open_cubes
from ingest.reader.cube_columns import aggregates
from ingest.reader.snapshot import Snapshot
from ingest.reader.step_statistics import held_places
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
    try:
        cubes = open_cubes(snapshot.store.objects)
        values = None if cubes is None else aggregates(cubes, statistic)
        if cubes is None or values is None:
            return {}
        place_of_rank = {rank: place for place, rank in enumerate(cubes.ranks.tolist())}
        held = held_places(cubes, snapshot, snapshot.steps)
        if not cubes.is_current():
            return {}
    except DamagedStore:
        return {}  # everything in the cubes is also in the indexes
    known = {}
    for step, place in held.items():
        ranks = list(snapshot.of_step(step))
        known[step] = RankValues(
            np.array(ranks, np.int64), values[place, [place_of_rank[rank] for rank in ranks]]
        )
    return known
