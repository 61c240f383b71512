"""The consolidated cubes as users have them: everything of the reader, and questions by condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest.reader.cube_find import find
from ingest.reader.cube_reader import CubeReader
from workers.errors import DamagedStore, StoreError
from workers.store.cubes import GROUP, parse_state
from workers.store.objects import ObjectStore

if TYPE_CHECKING:
    import pandas as pd

#: How often a question is asked again when the view changes meanwhile.
_ATTEMPTS = 5


@dataclass(eq=False)
class ConsolidatedCubes(CubeReader):
    """The cubes as they were when this was opened. Steps that are taken in later are not in it.

    Places are those of the axes of the view; `steps` and `ranks` say which step and rank stands where.
    """

    def find(
        self, where: str, *, step: Sequence[int] | None = None, include_partial: bool = False
    ) -> pd.DataFrame:
        """Return the tensors that fulfil a condition on their statistics or names, at any rank and step.

        Where steps were begun to be written again meanwhile, the view is opened and asked anew.

        Args:
            where: a condition such as `nan_count > 0 and io == 'output'`, on the statistics, the fields of
                the tensor (`name`, `net`, `graph`, `op_type`, `op_name`, `io`, `slot`, `occurrence`), `rank`
                and `step`. What is not known is NaN.
            step: only these steps.
            include_partial: take steps with quarantined or missing files, too.

        Returns:
            One line for each, by step, rank and place in the view, which is the order of execution but for
            tensors that came later: step, rank, name, the fields of the tensor, and the statistics that the
            condition names. `attrs` has `consolidated_at`, the time of the view,
            and `left_out`: what the view has, and was not looked at.

        Raises:
            UsageError: `where` is no condition, or the view does not have a step.
            DamagedStore: a cube is damaged.
            StoreError: the view is written again faster than it can be read.
        """
        view: ConsolidatedCubes | None = self
        for _ in range(_ATTEMPTS):
            if view is None:
                break
            try:
                found = find(view, where, step, include_partial=include_partial)
            except DamagedStore:
                if view.is_current():
                    raise
            else:
                if view.is_current():
                    return found
            view = open_cubes(self.objects)
        raise StoreError(f"{self.objects.address.url}: the view is being written again", hint="Try again.")


def open_cubes(objects: ObjectStore) -> ConsolidatedCubes | None:
    """Return the consolidated view of a store; None where there is none yet.

    Raises:
        DamagedStore: its metadata is damaged.
    """
    state = parse_state(objects.get(f"{GROUP}/zarr.json"))
    return None if state is None else ConsolidatedCubes(objects, state)
