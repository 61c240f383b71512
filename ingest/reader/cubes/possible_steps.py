"""Which steps may have a tensor that fulfils a condition, as the consolidated cubes tell.

The one place that decides between cubes and steps for questions whose answers need the index of a step: a
step is left out if the cubes hold it as it is committed, and exclude the condition for each of its tensors.
So the answer is that of the steps, and is as exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ingest.reader.block_filter import BlockFilter
from ingest.reader.cubes.consolidated import ConsolidatedCubes, open_cubes
from ingest.reader.cubes.cube_sketches import places_of_sketches, sketches_of_step
from ingest.reader.indexed_step import IndexedStep
from ingest.reader.tensor_filter import FilterFields
from workers.arrays.bounds import BoundedColumn
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, UsageError
from workers.store.consolidated.blocks import BLOCK_COLUMNS
from workers.store.objects import ObjectStore
from workers.store.sketches.sketch_names import ColumnsWithSketches, is_sketch_column

AnyStep = TypeVar("AnyStep", bound=IndexedStep)

#: Fewer steps are read without asking the cubes, whose axes take as many requests as a few indexes.
LEAST_STEPS = 16
#: The cubes have all ranks of a step: reading this many takes as long as the index of one rank.
RANKS_OF_AN_INDEX = 8
_COLUMNS = ColumnsWithSketches(BLOCK_COLUMNS)


def possible_steps(
    objects: ObjectStore, steps: Sequence[AnyStep], conditions: Sequence[FilterFields]
) -> list[AnyStep]:
    """Return the steps that may have a tensor which fulfils one of these conditions, in the same order.

    These are all steps if the cubes cannot tell: there are none, they are damaged or rewritten meanwhile, or
    lack what a condition names. A step that the cubes do not hold as it is committed may have such a tensor,
    and so may one with a tensor that lacks a histogram, if a condition asks for it.

    Cost: the axes of the cubes; for each step, an object of each statistic that the conditions name, of
    `row`, and of `sketches` if they name any. Memory: these statistics of one step of all ranks.

    Args:
        objects: the store.
        steps: the steps, as they are committed.
        conditions: what a tensor must fulfil, any of them.
    """
    if len(steps) < LEAST_STEPS:
        return list(steps)
    try:
        cubes = open_cubes(objects)
        asked = None if cubes is None else _CubeConditions.of(cubes, conditions)
        if asked is None:
            return list(steps)
        excluded = asked.excluded(steps)
        if not asked.cubes.is_current():
            return list(steps)
    except (DamagedStore, UsageError):
        return list(steps)  # whatever is wrong with cubes or condition, the steps tell
    return [step for step in steps if step not in excluded]


@dataclass(frozen=True, slots=True)
class _CubeConditions:
    """Conditions, as they are evaluated over the cubes."""

    cubes: ConsolidatedCubes
    conditions: Sequence[BlockFilter]
    fields: tuple[str, ...]
    """The statistics that they name."""
    sketches: Mapping[str, int]
    """By name, the places of the columns of sketches that they name."""

    @classmethod
    def of(cls, cubes: ConsolidatedCubes, conditions: Sequence[FilterFields]) -> _CubeConditions | None:
        """Return them as filters; None if one of the conditions is about neither statistics nor sketches.

        Raises:
            UsageError: the cubes lack what a condition names.
            DamagedStore: they are damaged.
        """
        filters = [BlockFilter(fields, cubes.axis, _COLUMNS) for fields in conditions]
        if not all(any(name in FIELDS or is_sketch_column(name) for name in f.filter.names) for f in filters):
            return None
        names = frozenset().union(*(condition.filter.names for condition in filters))
        needed = names | ({"count"} if "role" in names else set())
        fields = tuple(name for name in FIELDS if name in needed)
        return cls(cubes, filters, fields, places_of_sketches(names))

    def excluded(self, steps: Sequence[AnyStep]) -> set[AnyStep]:
        """Return the steps of which no tensor fulfils any of the conditions.

        Raises:
            UsageError: a condition cannot be evaluated.
            DamagedStore: a cube is damaged.
        """
        cubes = self.cubes
        by_number: dict[int, dict[int, AnyStep]] = {}
        for step in steps:
            if step.key.step is not None:
                by_number.setdefault(step.key.step, {})[step.key.rank] = step
        excluded: set[AnyStep] = set()
        for place, number in enumerate(cubes.steps.tolist()):
            of_ranks = by_number.get(number)
            if not of_ranks or place in cubes.state.rewriting:
                continue
            if len(of_ranks) * RANKS_OF_AN_INDEX >= len(cubes.ranks):
                excluded |= self._excluded_at(place, of_ranks)
        return excluded

    def _excluded_at(self, place: int, of_ranks: Mapping[int, AnyStep]) -> set[AnyStep]:
        """Return the ranks of one step that are excluded: the cubes hold them whole and without a match."""
        is_held = self._is_held(place, of_ranks)
        may_have, tensors = self._may_have(place, is_held)
        excluded: set[AnyStep] = set()
        for at, rank in enumerate(self.cubes.ranks.tolist()):
            if is_held[at] and not may_have[at]:
                step = of_ranks[rank]
                totals = step.commit.summary
                if tensors[at] == totals.tensors + totals.statistics_only:
                    excluded.add(step)
        return excluded

    def _is_held(self, place: int, of_ranks: Mapping[int, IndexedStep]) -> npt.NDArray[np.bool_]:
        """Return a mask of the ranks whose committed step the cubes hold, with all sketches, (rank,)."""
        cubes = self.cubes
        names = [of_ranks[rank].fingerprint if rank in of_ranks else None for rank in cubes.ranks.tolist()]
        is_held = cubes.table("fingerprint")[place] == np.array(names, object)
        if self.sketches:
            is_held &= cubes.table("without_histogram")[place] <= 0
        return np.asarray(is_held, bool)

    def _may_have(
        self, place: int, is_held: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return a mask of the ranks that may have a match, and how many tensors each has, (rank,)."""
        if not is_held.any():
            return np.ones(len(is_held), bool), np.zeros(len(is_held), np.int64)
        cubes = self.cubes
        block = cubes.block(place, self.fields, digests=False)
        sketches: dict[str, BoundedColumn] = {}
        # A block has its ranks in ascending order.
        order = np.argsort(cubes.ranks)
        if self.sketches:
            known = sketches_of_step(cubes, place, self.sketches, is_held)
            sketches = {name: BoundedColumn(low[order], high[order]) for name, (low, high) in known.items()}
        may_have, tensors = np.zeros(len(order), bool), np.zeros(len(order), np.int64)
        for condition in self.conditions:
            may_have[order] |= condition.may(block, sketches).any(axis=1)
        tensors[order] = block.present.sum(axis=1)
        return may_have, tensors
