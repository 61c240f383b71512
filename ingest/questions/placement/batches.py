"""Which ranks read batches of their own, and which of these read the same one."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ingest.questions.divergence.agreement import AgreementOfRanks, Labels
from ingest.reader.mesh import replica_groups
from ingest.reader.step_statistics import StepStatistics


class Batches:
    """What the first module reads, in all of its calls."""

    def __init__(self, statistics: StepStatistics, seen: AgreementOfRanks) -> None:
        """Find it.

        Args:
            statistics: reads the steps.
            seen: who holds the same in which step.
        """
        self._statistics, self._seen, self._ranks = statistics, seen, statistics.snapshot.ranks
        modules = (place for place, key in enumerate(seen.keys) if key.op_type.startswith("Module"))
        self.first = next((place for place in modules if seen.keys[place].io == "input"), None)
        """Its place among the tensors, in the first call; None if no module is recorded."""
        call = None if self.first is None else seen.keys[self.first]
        self._calls = [
            place
            for place, key in enumerate(seen.keys)
            if call is not None and key._replace(occurrence=0) == call._replace(occurrence=0)
        ]
        told = replica_groups(statistics.snapshot.store.coordinates(self._ranks))
        self.are_told = bool(told)
        """Whether the mesh tells which ranks should read batches of their own."""
        self._apart = self._fed_apart(told)

    def _fed_apart(self, told: Collection[Collection[int]]) -> list[list[int]]:
        """Return groups of ranks, by their places, each of which has batches of its own."""
        if self.first is None:
            return []
        if told:
            return [[self._ranks.index(rank) for rank in group if rank in self._ranks] for group in told]
        steps = range(len(self._seen.content))
        apart = (step for step in steps if self._seen.is_distinct(step, self.first))
        return [np.flatnonzero(self._seen.labels(step, self.first) >= 0).tolist() for step in apart][:1]

    def are_apart(self, number: int) -> bool:
        """Return whether each of all ranks reads its own in a step: then no activation must be the same."""
        if self.first is None or len(max(self._apart, key=len, default=[])) < len(self._ranks):
            return False
        return self._seen.is_distinct(number, self.first)

    def shared(self, number: int) -> tuple[int, ...]:
        """Return ranks that read the same batch in a step, and should have batches of their own.

        They read it in all calls: what is evaluated between two updates may be the same on all ranks.
        """
        batches = [place for place in self._calls if not self._seen.constant[number, place]]
        block = self._statistics.block(self._statistics.snapshot.steps[number]) if batches else None
        if block is None or np.nansum(block.statistic("nan_count")[:, batches]):
            return ()  # NaN is the same everywhere
        read = np.array([self._seen.labels(number, place) for place in batches])
        same = next(filter(None, (_sharing(group, read) for group in self._apart)), [])
        return tuple(self._ranks[place] for place in same)


def _sharing(ranks: Collection[int], read: Labels) -> list[int]:
    """Return ranks that read the same bytes in all calls that they made, by labels of (call, rank)."""
    for first in ranks:
        known = (read >= 0) & (read[:, [first]] >= 0)
        is_same = known.any(axis=0) & ((read == read[:, [first]]) | ~known).all(axis=0)
        same = [rank for rank in ranks if is_same[rank]]
        if len(same) > 1:
            return same
    return []
