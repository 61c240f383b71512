"""Skips the indexes of steps that hold no NaN or Inf, as the consolidated cubes tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ingest.reader.cubes.consolidated import ConsolidatedCubes
from ingest.reader.snapshot import Snapshot
from ingest.reader.step_statistics import held_places, usable_cubes
from workers.errors import DamagedStore

#: The count that tells whether a tensor may hold anything unknown.
_NAN_COUNT = "nan_count"


@dataclass
class CleanSteps:
    """The steps of a snapshot that the cubes hold as they are committed, with every count known and zero.

    The totals of a commit do not tell this of a step with statistics alone: these may lack the number of NaN.

    Cost: nothing before the first question; then the three cubes of counts, a block of steps after the other.
    Memory: an inner chunk of one of them.
    """

    snapshot: Snapshot
    counts: tuple[str, ...]
    """The counts that must be zero: some of `nan_count`, `pos_inf_count` and `neg_inf_count`."""
    _blocks: dict[int, frozenset[int]] = field(default_factory=dict)
    """The clean steps of each block of steps that was read."""

    def __contains__(self, step: int) -> bool:
        """Return whether a step is known to be clean on all ranks of the snapshot that have it.

        If the cubes are damaged or not up to date, nothing is known: the indexes have what they have.
        """
        place = self._places.get(step)
        if self._cubes is None or place is None:
            return False
        block = place // self._cubes.state.grid.steps
        if block not in self._blocks:
            self._blocks[block] = _clean_steps_of_block(self._cubes, self.snapshot, block, self.counts)
        return step in self._blocks[block]

    @cached_property
    def _cubes(self) -> ConsolidatedCubes | None:
        return usable_cubes(self.snapshot)

    @cached_property
    def _places(self) -> dict[int, int]:
        """Where the cubes have the steps, by step."""
        cubes = self._cubes
        return {} if cubes is None else {step: place for place, step in enumerate(cubes.steps.tolist())}


def _clean_steps_of_block(
    cubes: ConsolidatedCubes, snapshot: Snapshot, block: int, counts: tuple[str, ...]
) -> frozenset[int]:
    per_block = cubes.state.grid.steps
    steps = cubes.steps[block * per_block : (block + 1) * per_block].tolist()
    place_of = held_places(cubes, snapshot, [step for step in steps if snapshot.of_step(step)])
    if not place_of:
        return frozenset()
    try:
        known, bad = _known_and_bad(cubes, block, counts)
        if not cubes.is_current():
            return frozenset()
    except DamagedStore:
        return frozenset()
    column_of = {rank: column for column, rank in enumerate(cubes.ranks.tolist())}
    return frozenset(
        step
        for step, place in place_of.items()
        if all(
            not bad[place % per_block, column_of[rank]]
            and known[place % per_block, column_of[rank]] == summary.tensors + summary.statistics_only
            for rank, summary in (
                (rank, opened.commit.summary) for rank, opened in snapshot.of_step(step).items()
            )
        )
    )


def _known_and_bad(
    cubes: ConsolidatedCubes, block: int, counts: tuple[str, ...]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return how many tensors have a known number of NaN, and whether any count is above zero; (step, rank).

    In the cubes, -1 is a count that is not known, and also that of a tensor which a rank does not have. So
    the number of tensors that a commit counts decides.
    """
    shape = cubes.state.grid.steps, cubes.state.ranks
    known, bad = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for name in dict.fromkeys((_NAN_COUNT, *counts)):
        for first, known_here, bad_here in _counted(cubes.anomaly_parts(name, block)):
            ranks = slice(first, min(first + known_here.shape[1], cubes.state.ranks))
            there = slice(ranks.stop - first)
            if name == _NAN_COUNT:
                known[:, ranks] += known_here[:, there]
            if name in counts:
                bad[:, ranks] |= bad_here[:, there]
    return known, bad


def _counted(
    parts: Iterable[tuple[int, npt.NDArray[np.int64]]],
) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.bool_]]]:
    """Yield of each part how many counts are known, and whether any is above zero; (step, rank)."""
    last = np.empty((0, 0, 0), np.int64)
    known, bad = np.zeros((0, 0), np.int64), np.zeros((0, 0), bool)
    for first, values in parts:
        if values is not last:
            last = values
            known = np.count_nonzero(values >= 0, axis=-1)
            bad = values.max(axis=-1, initial=-1) > 0
        yield first, known, bad
