"""The consolidated cubes as a user has them: read, and searched by a condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ingest.reader.cubes.cube_reader import CubeReader
from workers.errors import DamagedStore, StoreError
from workers.store.consolidated.cubes import GROUP, parse_state
from workers.store.objects import ObjectStore

if TYPE_CHECKING:
    import pandas as pd

#: How often a search is repeated because the cubes changed meanwhile.
_ATTEMPTS = 5


class ConsolidatedCubes(CubeReader):
    """Statistics and digests of all tensors over steps and ranks, as of when this was opened.

    Steps that are consolidated later are not included. A place is a position on one of the axes; `steps`,
    `ranks` and `axis` name the step, rank and tensor at each place.
    """

    def find(
        self, where: str, *, step: Sequence[int] | None = None, include_partial: bool = False
    ) -> pd.DataFrame:
        """Return the tensors that fulfil a condition on their statistics or names, at any rank and step.

        If the consolidator begins to rewrite steps meanwhile, the cubes are opened and searched again.

        Args:
            where: a condition such as `nan_count > 0 and io == 'output'` on the statistics, the fields of
                the tensor (`name`, `net`, `graph`, `op_type`, `op_name`, `io`, `slot`, `occurrence`), `rank`
                and `step`, and on the columns of `workers.store.consolidated.cubes.SKETCHES`. Unknown
                statistics are NaN. What is known between two bounds must fulfil it for all values between
                them.
            step: only these steps.
            include_partial: also search steps with quarantined or missing files.

        Returns:
            A row for each tensor, by step, rank and place. Places are in order of execution, except for
            tensors that first occurred in later steps. The columns are step, rank, name, the fields of the
            tensor, and the statistics that the condition names. `attrs` has `consolidated_at`, the time of
            the cubes, `left_out`, the steps in the cubes that were not searched, and `undecided`, how
            many other tensors may fulfil the condition.

        Raises:
            UsageError: `where` is not a valid condition, the cubes do not have one of the steps, or they lack
                a column of sketches or the histogram of a tensor.
            DamagedStore: a cube is damaged.
            StoreError: the cubes are rewritten faster than they can be read.
        """
        from ingest.reader.cubes.conditions import find  # deferred: 0.02 s, and few questions search

        cubes: ConsolidatedCubes | None = self
        for _ in range(_ATTEMPTS):
            if cubes is None:
                break
            try:
                frame = find(cubes, where, step, include_partial=include_partial)
            except DamagedStore:
                if cubes.is_current():
                    raise
            else:
                if cubes.is_current():
                    return frame
            cubes = open_cubes(self.objects)
        url = self.objects.address.url
        raise StoreError(f"{url}: the consolidated view is being rewritten", hint="Try again.")


def open_cubes(objects: ObjectStore) -> ConsolidatedCubes | None:
    """Return the consolidated cubes of a store; None if it has none yet. Takes one request.

    Raises:
        DamagedStore: their metadata is damaged.
    """
    state = parse_state(objects.get(f"{GROUP}/zarr.json"))
    return None if state is None else ConsolidatedCubes(objects, state)
