"""What a service leaves behind when it ends: steps of the dump that are not in the store."""

from __future__ import annotations

from dataclasses import dataclass

from ingest.steps.state import StepTable


@dataclass(frozen=True, slots=True)
class Backlog:
    """The steps that the last scan showed and that were not committed since, as the table has them.

    Run files do not count: they change as long as the job runs.
    """

    table: StepTable

    @property
    def steps(self) -> int:
        """How many steps are not in the store as they were seen last, complete or not."""
        return len(self.table.left())

    @property
    def nbytes(self) -> int:
        """The bytes of their files."""
        return sum(state.listing.nbytes for state in self.table.left() if state.listing is not None)
