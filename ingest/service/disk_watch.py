"""How full the disk of the dump is, and what that means for its steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingest.disk.pressure import DiskSeen, Pressure
from ingest.disk.space import space_at
from ingest.steps.decide import StepPolicy
from workers.events import Observer


@dataclass(slots=True)
class DiskWatch:
    """Measures the disk of one dump with each scan."""

    root: Path
    pressure: Pressure | None
    """None if it does not matter how full the disk is."""
    notify: Observer
    seen: DiskSeen | None = None
    """How full the disk was at the last scan."""

    def measure(self) -> None:
        """Measure the free space and report it. While the dump is gone, the last measurement stands."""
        space = space_at(self.root)
        if self.pressure is not None and space is not None:
            self.seen = self.pressure.judge(space)
            self.notify(self.seen)

    def apply_to(self, policy: StepPolicy) -> StepPolicy:
        """Return the policy for a disk that is as full as this one."""
        return policy if self.seen is None else policy.under(self.seen)
