"""Groups of replicas as the layout question finds them: ranks that hold the same parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingest.questions.placement.agree import is_parameter
from ingest.questions.placement.replicas import ReplicaCounts
from ingest.questions.placement.slot_kinds import SlotKind, slot_kind_of
from workers.store.consolidated.blocks import Block, TensorAxis

#: Steps that are looked at, and parameters of each, evenly over all: the cost grows with the square of ranks.
_STEPS, _PARAMETERS = 2, 64


class LayoutGroups:
    """Looks at the parameters of the first steps."""

    def __init__(self, ranks: Sequence[int], axis: TensorAxis) -> None:
        """Begin with ranks that have nothing in common; `axis` has the tensors of the steps."""
        self._counts = ReplicaCounts(ranks)
        self._axis = axis
        self._steps = 0

    def visit(self, block: Block) -> None:
        """Count parameters of a step that are not constant; nothing after the first steps that have some."""
        if self._steps == _STEPS:
            return
        low, high, size = (block.statistic(name) for name in ("min", "max", "count"))
        with np.errstate(invalid="ignore"):
            tells = ((low < high) & block.digest.any(axis=2)).any(axis=0)
        places = [
            place
            for place in np.flatnonzero(tells).tolist()
            if slot_kind_of(self._axis[place]) is SlotKind.PARAMETER or is_parameter(self._axis[place])
        ]
        self._steps += bool(places)
        for place in places[:: -(-len(places) // _PARAMETERS) or 1]:
            contents = {
                rank: block.digest[number, place].tobytes()
                for number, rank in enumerate(block.ranks)
                if block.row[number, place] >= 0
            }
            self._counts.add(dict(contents), int(np.nanmax(size[:, place])))

    def groups(self) -> list[list[int]]:
        """Return the groups; none if they are not those of a mesh."""
        return self._counts.grid()
