"""What a service is to do, besides its dump, its store and its cluster."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ingest.disk.pressure import Pressure
from ingest.dispatch.submitter import DispatchLimits
from ingest.dump_retention.policy import RetentionPolicy
from ingest.steps.decide import StepPolicy
from ingest.watching.watcher import QuietClock
from workers.arrays.marginals import MarginalScope
from workers.model import MIB
from workers.rules.values import RuleSet
from workers.store.model import Grid


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Everything that may be chosen; `ingest.wiring.services` derives it from the settings."""

    policy: StepPolicy = field(default_factory=StepPolicy)
    grid: Grid = field(default_factory=Grid)
    limits: DispatchLimits = field(default_factory=lambda: DispatchLimits(1024 * MIB))
    resources: Mapping[str, float] = field(default_factory=dict)
    """What a worker must offer to be given a task, as Dask counts resources."""
    host: str = field(default_factory=socket.gethostname)
    """What this host is called in commits: device ids mean something on their host only."""
    rules: RuleSet | None = None
    """What to look for in each step when it is committed."""
    poll_s: float = 1.0
    retry_forever: bool = False
    """Whether to wait for a store or cluster that does not answer, rather than raise."""
    take_removed: bool = False
    """Whether to take steps that were removed from the store on purpose."""
    pressure: Pressure | None = None
    """Judges how full the disk of the dump is; None if that does not matter."""
    continues: frozenset[str] = frozenset()
    """Other directories whose steps are those of this dump."""
    recheck_rate: float = 0.0
    """How many bytes per second of committed files are read again while nothing else is to be done; 0 for
    none, infinity for all of them, once."""
    retention: RetentionPolicy | None = None
    """What is deleted in the dump once it is committed; None if nothing is."""
    dry_run: bool = False
    """Whether to do everything but delete."""
    patience_s: float = 60.0
    """How long the loop waits for an answer of the store, in seconds. One that gives up does so after as long
    again."""
    task_timeout_s: float = 600.0
    """How long a task may run on one worker, besides a second for each MiB that it reads."""
    sketches: bool = False
    """Whether histograms of tensors and digests of their blocks are stored."""
    marginals: MarginalScope = MarginalScope.NONE
    """The tensors whose marginals are stored, too, if `sketches` is set."""
    pool: bool = False
    """Whether what ranks share is stored once, in the pool of a step."""
    black_box: int | None = None
    """How many steps of each rank have tensors, besides those around incidents; None for all."""
    quiet_clock: QuietClock = field(default_factory=QuietClock)
    clock: Callable[[], float] = time.monotonic
