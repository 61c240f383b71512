"""Puts the parts of a service together, around one table of steps."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ingest.disk.pressure import Pressure
from ingest.dispatch.clients import TaskClient
from ingest.dispatch.submitter import DispatchLimits, Submitter
from ingest.dispatch.window import TaskMonitor
from ingest.dump_retention.policy import RetentionPolicy
from ingest.layouts.base import Dump
from ingest.service.commits import CommitChecks
from ingest.service.decider import Decider
from ingest.service.dependencies import Dependencies
from ingest.service.disk_watch import DiskWatch
from ingest.service.foreign_dump import ForeignDumpCheck
from ingest.service.observers import Observers
from ingest.service.offering import Offering
from ingest.service.planner import Planner
from ingest.service.rechecks import Rechecks
from ingest.service.scan_schedule import ScanSchedule
from ingest.service.service import Service
from ingest.service.shared_tensors import SharedTensors
from ingest.service.store_probe import StoreProbe
from ingest.steps.committed import Committed
from ingest.steps.decide import StepPolicy
from ingest.steps.state import StepTable
from ingest.watching.watcher import QuietClock, Watcher
from workers.arrays.sketches.marginal_scope import MarginalScope
from workers.events import Observer
from workers.model import MIB
from workers.rules.values import RuleSet
from workers.store import commit
from workers.store.backends.bounded import BoundedObjects, Outage
from workers.store.model import Grid
from workers.store.objects import ObjectStore

if TYPE_CHECKING:
    from ingest.dump_retention.retention import SourceRetention


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What a service is to do, besides its dump, its store and its cluster."""

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
    quiet_clock: QuietClock = field(default_factory=QuietClock)
    clock: Callable[[], float] = time.monotonic


def build_service(
    dump: Dump,
    objects: ObjectStore,
    connect: Callable[[], TaskClient],
    options: ServiceOptions | None = None,
    *,
    observers: Sequence[Observer] = (),
) -> Service:
    """Put a service together; nothing is scanned yet.

    Args:
        dump: what to take steps from.
        objects: the store to take them into.
        connect: returns a connected client; called when the first step is offered, and if a client is lost.
        options: what to do.
        observers: called with everything that happens.
    """
    options = options or ServiceOptions()
    table = StepTable()
    heard = Observers(observers)
    clock = options.clock
    outage = Outage()
    patient = BoundedObjects(objects, options.patience_s, outage)
    committed = Committed(patient, table, take_removed=options.take_removed, notify=heard.notify)
    watcher = Watcher(dump, options.grid, table, options.quiet_clock)
    monitor = TaskMonitor(options.task_timeout_s, clock, notify=heard.notify)
    submitter = Submitter(connect, options.limits, table, clock, options.resources, monitor=monitor)

    def ask() -> None:
        commit.read_root(objects)
        outage.end()

    dependencies = Dependencies(
        heard.notify,
        StoreProbe(ask),
        options.retry_forever,
        options.patience_s,
        outage,
        lambda: commit.read_root(patient),
        clock,
    )
    schedule = ScanSchedule(options.poll_s, clock)
    planner = Planner(
        dump.root,
        objects.address,
        options.grid,
        options.rules,
        options.host,
        options.sketches,
        SharedTensors(patient) if options.pool else None,
        marginals=options.marginals,
    )
    decider = Decider(planner, committed)
    foreign_dumps = ForeignDumpCheck(dump, patient, options.grid, options.host, set(options.continues))
    return Service(
        table=table,
        watcher=watcher,
        committed=committed,
        offering=Offering(watcher, decider, submitter, dependencies, schedule, heard.notify, clock),
        submitter=submitter,
        commits=CommitChecks(committed, dependencies, clock),
        retention=_retention(dump, committed, submitter, options, monitor),
        disk=DiskWatch(dump.root, options.pressure, heard.notify),
        dependencies=dependencies,
        schedule=schedule,
        observers=heard,
        policy=replace(
            options.policy, deletes=options.retention is not None, other_roots=frozenset(options.continues)
        ),
        foreign_dumps=None if options.policy.replace else foreign_dumps,
        rechecks=Rechecks(
            table,
            str(dump.root),
            objects.address,
            submitter.client,
            options.recheck_rate,
            options.resources,
            clock,
            monitor,
        ),
        clock=clock,
    )


def _retention(
    dump: Dump, committed: Committed, submitter: Submitter, options: ServiceOptions, monitor: TaskMonitor
) -> SourceRetention | None:
    if options.retention is None:
        return None
    from ingest.dump_retention.policy import SourceJudge  # deferred: 0.03 s, and most dumps are kept
    from ingest.dump_retention.retention import (
        ReadBacks,  # deferred: the same
        SourceRetention,  # deferred: the same
    )

    return SourceRetention(
        SourceJudge(committed.table, committed, dump.root, options.host, options.retention),
        committed.objects.address,
        ReadBacks(submitter.client, options.limits.inflight_nbytes, options.resources, monitor),
        retry_forever=options.retry_forever,
        dry_run=options.dry_run,
        clock=options.clock,
    )
