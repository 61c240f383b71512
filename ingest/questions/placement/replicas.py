"""Which ranks are replicas of one another: those that hold the same parameters.

Norms and biases are the same on all ranks also where weights are cut, and a replica may drift in some. So two
ranks are replicas if they share more than half of their parameters, and more than half of the elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ingest.questions.placement.agree import is_parameter
from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from workers.store.consolidated.blocks import Block, TensorAxis

#: The share of parameters, and of their elements, that two replicas have in common.
MOST = 0.5
#: Steps that are looked at, and parameters of each, evenly over all: the cost grows with the square of ranks.
_STEPS, _PARAMETERS = 2, 64


class ReplicaCounts:
    """Counts what ranks have in common in the first steps."""

    def __init__(self, ranks: Sequence[int], axis: TensorAxis) -> None:
        """Begin with ranks that have nothing in common; `axis` has the tensors of the steps."""
        self._ranks, self._axis, self._steps = list(ranks), axis, 0
        shape = (2, len(self._ranks), len(self._ranks))  # tensors, elements
        self._equal: npt.NDArray[np.float64] = np.zeros(shape)
        self._shared: npt.NDArray[np.float64] = np.zeros(shape)

    def visit(self, block: Block) -> None:
        """Count parameters of a step that are not constant; nothing after the first steps that have some."""
        if self._steps == _STEPS:
            return
        low, high, size = (block.statistic(name) for name in ("min", "max", "count"))
        known = block.present & block.digest.any(axis=2)
        with np.errstate(invalid="ignore"):
            tells = ((low < high) & known).any(axis=0)
        places = [
            place
            for place in np.flatnonzero(tells).tolist()
            if slot_kind_of(self._axis[place]) is SlotKind.PARAMETER or is_parameter(self._axis[place])
        ]
        self._steps += bool(places)
        own = [self._ranks.index(rank) for rank in block.ranks]
        for place in places[:: -(-len(places) // _PARAMETERS) or 1]:
            content = block.digest[:, place]
            same = (content[:, None] == content[None]).all(axis=2) & known[:, place]
            weights = np.array([1.0, float(np.nanmax(size[:, place]))])[:, None, None]
            both = np.ix_([0, 1], own, own)
            has = block.present[:, place]
            self._shared[both] += weights * (has[:, None] & has[None])
            self._equal[both] += weights * (same & has[:, None] & has[None])

    def groups(self) -> list[tuple[int, ...]]:
        """Return the groups of ranks that are replicas, of two and more, in order."""
        alike = np.asarray((self._equal > MOST * self._shared) & (self._shared > 0))
        are_replicas: npt.NDArray[np.bool_] = np.asarray(alike.all(axis=0))
        groups: dict[int, list[int]] = {}
        for place, rank in enumerate(self._ranks):
            first = next((first for first in groups if are_replicas[first, place]), place)
            groups.setdefault(first, []).append(rank)
        return [tuple(group) for group in groups.values() if len(group) > 1]

    def grid(self) -> list[list[int]]:
        """Return the groups if they are those of a mesh: several, as large as each other, with all ranks."""
        groups = self.groups()
        is_whole = sum(map(len, groups)) == len(self._ranks)
        is_mesh = len(groups) > 1 and is_whole and len({len(group) for group in groups}) == 1
        return [list(group) for group in groups] if is_mesh else []
