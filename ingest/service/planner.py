"""Plans of the steps of one dump for one store."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from ingest.planning.inspection import Inspected
from ingest.planning.plan import plan_step
from ingest.service.shared_tensors import SharedTensors
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.rules.values import RuleSet
from workers.store.model import Grid, Origin, StoreAddress
from workers.tasks.model import StepPlan


@dataclass(frozen=True, slots=True)
class Planner:
    """What every plan has in common."""

    root: Path
    """The dump."""
    store: StoreAddress
    grid: Grid
    rules: RuleSet | None = None
    """What to look for in each step when it is committed."""
    host: str = field(default_factory=socket.gethostname)
    """What this host is called in commits: device ids mean something on their host only."""
    sketches: bool = False
    """Whether histograms of tensors are stored."""
    shared: SharedTensors | None = None
    """Tells what goes into the pool; None if nothing does."""
    marginals: MarginalScope = MarginalScope.NONE
    """The tensors whose marginals are stored, too, if `sketches` is set."""

    def plan(self, inspected: Inspected, leave_out_tensors: str = "", rewrites: int = 0) -> StepPlan:
        """Plan the conversion of one step; see `plan_step`."""
        listing = inspected.listing
        origin = Origin(listing.layout, self.host, str(self.root), listing.rank_from)
        return plan_step(
            inspected,
            origin,
            self.store,
            self.grid,
            self.rules,
            leave_out_tensors=leave_out_tensors,
            rewrites=rewrites,
            sketches=self.sketches,
            marginals=self.marginals,
            shared=None if self.shared is None or leave_out_tensors else self.shared.of(listing.key),
        )
