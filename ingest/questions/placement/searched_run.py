"""What is looked at of a run to find mistakes: which ranks hold, read and learn the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from ingest.identities.evidence import Level
from ingest.questions.divergence.agreement import AgreementOfRanks, Labels
from ingest.questions.placement.agree import MANY, Kind, kind_of
from ingest.questions.placement.slot_kinds import batch_of, in_all_calls, outputs_with_gradients
from ingest.questions.placement.states import States
from ingest.questions.placement.sums import layers_of
from ingest.reader.mesh import replica_groups
from ingest.reader.operator_kinds import is_numbered
from ingest.reader.step_statistics import StepStatistics

#: Elements that are read of one run where nothing is suspected.
_BUDGET = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with a tensor of a step."""

    order: int
    """Where in the order of execution."""
    tensor: int
    ranks: tuple[int, ...]
    kind: str
    level: Level
    text: str


class SearchedRun:
    """The steps of a run, and the budget of what is read of them."""

    def __init__(
        self,
        statistics: StepStatistics,
        seen: AgreementOfRanks,
        sums: Mapping[Kind, Kind] | None = None,
        *,
        thorough: bool = True,
        asked: Collection[int] = (),
    ) -> None:
        """Begin.

        Args:
            statistics: reads the steps.
            seen: who holds the same in which step.
            sums: by kind of tensor, the kind of the tensor that is the sum of it over the ranks.
            thorough: compute sums where nothing is suspected, too, as far as the budget goes.
            asked: steps of which sums are computed in any case.
        """
        self.snapshot, self.statistics, self.seen = statistics.snapshot, statistics, seen
        self.sums = sums or {}
        self.layers = layers_of(seen.keys)
        self.kinds = [kind_of(key, 0) for key in seen.keys]
        self.partial = self._partial_sums()
        self.left = _BUDGET if self.partial or (thorough and self.layers) else 0
        self._thorough = thorough
        self._states = States(seen.keys)
        self.asked = {number for number, step in enumerate(self.snapshot.steps) if step in asked}
        self.batch = batch_of(seen.keys)
        self._batches = in_all_calls(seen.keys, self.batch)
        self.layers_read = outputs_with_gradients(seen.keys)
        self.beside = {
            gradient: beside for layer in self.layers for gradient, beside in layer.learns_beside()
        }
        self.summed: dict[tuple[int, ...], int] = {}
        """Over how many ranks an output, or what a layer passes back to a gradient, was added up before."""
        self._gradients = seen.gradients
        self._told = replica_groups(self.snapshot.store.coordinates(self.snapshot.ranks))
        self._apart = self._fed_apart()

    @property
    def is_told(self) -> bool:
        """Whether the mesh tells which ranks are fed apart."""
        return bool(self._told)

    def _partial_sums(self) -> list[int]:
        """Return the tensors of which another is the sum over the ranks, or whose names say that."""
        return [
            place
            for place, (key, kind) in enumerate(zip(self.seen.keys, self.kinds, strict=True))
            if kind in self.sums or "partial" in key.op_name
            if not is_numbered(key.op_type, key.op_name)  # which is something else in each step
        ]

    def _fed_apart(self) -> list[list[int]]:
        """Return groups of ranks, by their places, each of which has batches of its own."""
        if self.batch is None:
            return []
        ranks = self.snapshot.ranks
        if self._told:
            return [[ranks.index(rank) for rank in group if rank in ranks] for group in self._told]
        steps = range(len(self.seen.content))
        apart = (step for step in steps if self.seen.is_distinct(step, self.batch))
        return [np.flatnonzero(self.seen.labels(step, self.batch) >= 0).tolist() for step in apart][:1]

    def shares_batch(self, number: int) -> tuple[int, ...]:
        """Return ranks that read the same batch in a step, and should have batches of their own.

        They read it in all calls: what is evaluated between two updates may be the same on all ranks.
        """
        batches = [place for place in self._batches if not self.seen.constant[number, place]]
        if not batches or any(self._has_nan(number, place) for place in batches):
            return ()  # NaN is the same everywhere
        read = np.array([self.seen.labels(number, place) for place in batches])
        same = next(filter(None, (_sharing(group, read) for group in self._apart)), [])
        return tuple(self.snapshot.ranks[place] for place in same)

    def _has_nan(self, number: int, tensor: int) -> bool:
        """Return whether a tensor has NaN in a step on any rank."""
        counts = self.statistics.block(self.snapshot.steps[number]).statistic("nan_count")[:, tensor]
        return bool(np.nansum(counts))

    @staticmethod
    def is_mostly_shared(members: int, other: int) -> bool:
        """Return whether all but a few members of a kind are shared, which makes these few odd."""
        return members - other >= max(MANY, 2 * other)

    def shared_gradients(self, number: int) -> int:
        """Return how many gradients are the same on all ranks, which hold the same parameter."""
        pairs = (pair for pair in self._gradients if self.seen.is_replicated(number, pair[1]))
        return sum(self.seen.is_replicated(number, gradient) for gradient, _ in pairs)


def _sharing(ranks: Collection[int], read: Labels) -> list[int]:
    """Return ranks that read the same bytes in all calls that they made, by labels of (call, rank)."""
    for first in ranks:
        known = (read >= 0) & (read[:, [first]] >= 0)
        is_same = known.any(axis=0) & ((read == read[:, [first]]) | ~known).all(axis=0)
        same = [rank for rank in ranks if is_same[rank]]
        if len(same) > 1:
            return same
    return []
