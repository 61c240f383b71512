"""What the user wants to be done with steps, and what the disk asks for just now: one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ingest.disk.pressure import DiskSeen
from ingest.steps.completeness import CompletenessPolicy
from workers.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepPolicy:
    """How steps are chosen and decided about."""

    completeness: CompletenessPolicy = field(default_factory=CompletenessPolicy)
    order: Literal["oldest", "newest"] = "oldest"
    """Which steps of a backlog come first."""
    replace: bool = False
    """Whether steps that came from another dump may be replaced."""
    other_roots: frozenset[str] = frozenset()
    """Other directories in which this dump was, or is seen elsewhere: steps from there are its own."""
    foreign_ranks: Mapping[int, UsageError] = field(default_factory=dict)
    """The ranks of the dump that the store has from another dump, and the error that says so."""
    deletes: bool = False
    """Whether dump files are deleted once they are committed."""
    leave_out_tensors: str = ""
    """Why the payloads of tensors are not stored for now; "" if they are. Steps that are committed without
    them count as committed meanwhile."""

    def under(self, disk: DiskSeen) -> StepPolicy:
        """Return the policy for a disk that is as full as this."""
        newest_first = disk.under_pressure and disk.policy == "newest"
        return replace(
            self,
            order="newest" if newest_first else self.order,
            leave_out_tensors=disk.leave_out_tensors,
        )
