"""Services that take a dump into a store, and their workers, from settings."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.disk import Pressure, parse_threshold
from ingest.dispatch.processes import ProcessWorkers
from ingest.dispatch.runners import start_workers
from ingest.dispatch.submitter import DispatchLimits, JobConverted
from ingest.dump_retention.policy import RetentionPolicy
from ingest.layouts.base import Dump
from ingest.layouts.detect import find_dump
from ingest.layouts.places import tensors_beside
from ingest.service.offering import ServiceOptions
from ingest.service.one_shot import Report, explain_dump, ingest_once
from ingest.service.service import Service, without_old_objects
from ingest.service.stopping import StopRequest
from ingest.settings import Settings, load
from ingest.steps.decide import CompletenessPolicy, StepPolicy, StepRow
from ingest.wiring.stores import grid_of, place_of_store, refuse_misplaced
from workers.arrays.marginals import MarginalScope
from workers.errors import StoreSilent, UsageError
from workers.events import Event, Observer
from workers.rules.ready import rules_of
from workers.store import commit
from workers.store.backends.wrappers import BoundedObjects
from workers.store.opening import open_objects

if TYPE_CHECKING:
    from ingest.dispatch.cluster import Cluster


#: How long the loop of a watcher waits for the store, in seconds. What takes longer is left to the workers.
_PATIENCE_S = 10.0


def options_of(settings: Settings, *, retry_forever: bool = False, dry_run: bool = False) -> ServiceOptions:
    """Return the options of a service from its settings.

    Raises:
        UsageError: a rule is wrong.
    """
    completeness = CompletenessPolicy(settings.quiet_s, settings.settle_s)
    deletes = settings.after_commit == "delete"
    is_box = settings.black_box is not None and retry_forever and not dry_run
    return ServiceOptions(
        policy=StepPolicy(completeness, settings.order, replace=settings.replace),
        grid=grid_of(settings),
        limits=DispatchLimits(int(settings.inflight_size)),
        resources=settings.worker_resources,
        host=settings.host or socket.gethostname(),
        rules=rules_of(settings.rules),
        poll_s=settings.poll_s,
        retry_forever=retry_forever,
        # A watcher never takes again what was removed, or it would undo each `gc`.
        take_removed=settings.replace and not retry_forever,
        pressure=Pressure(settings.under_pressure, parse_threshold(settings.pressure_free)),
        continues=frozenset(settings.continues),
        recheck_rate=_recheck_rate(settings, watches=retry_forever),
        retention=RetentionPolicy(settings.keep_last, settings.keep_anomalous) if deletes else None,
        dry_run=dry_run,
        patience_s=min(_PATIENCE_S, settings.store_timeout_s) if retry_forever else settings.store_timeout_s,
        task_timeout_s=settings.task_timeout_s,
        # What ranks share would stay in the pool for a day after its steps have left the black box.
        pool=settings.pool and not is_box,
        black_box=settings.black_box if is_box else None,
        sketches=settings.sketches,
        marginals=MarginalScope(settings.marginals),
    )


def _recheck_rate(settings: Settings, *, watches: bool) -> float:
    """Return how many bytes of committed files are read again each second: a run of `ingest` does it once."""
    if watches:
        return float(settings.recheck_rate)
    return math.inf if settings.recheck else 0.0


def explain_steps(dump: str | Path, settings: Settings) -> list[StepRow]:
    """Explain where each step of a dump is and why; what `dump-ingest watch --explain` prints.

    Scans the dump and asks the store once, and writes nothing; needs no cluster.

    Raises:
        UsageError: the directory is not a dump, or the store would lie in it.
        StoreError: the store cannot be used.
    """
    tree = find_dump(Path(dump), rank_map=settings.rank_map, layout=settings.layout, with_checkpoints=False)
    objects = open_objects(place_of_store(settings, tree))
    commit.read_root(objects)
    return explain_dump(tree, objects, options_of(settings, retry_forever=True))


@contextmanager
def open_service(
    dump: Dump,
    settings: Settings,
    *,
    workers: Cluster | ProcessWorkers | None = None,
    retry_forever: bool = False,
    dry_run: bool = False,
) -> Iterator[Service]:
    """Wire the service for a dump.

    Args:
        dump: the dump.
        settings: everything else.
        workers: from `start_workers`. None: they are started here, and end with the service.
        retry_forever: whether to wait for a store or cluster that does not answer, and to try again for ever.
        dry_run: whether only to report what would be deleted in the dump.

    Raises:
        UsageError: the store would lie in a dump, or where the workers cannot see it; or a rule is wrong.
        StoreError: the store cannot be used.
    """
    options = options_of(settings, retry_forever=retry_forever, dry_run=dry_run)
    place = place_of_store(settings, dump)
    with ExitStack() as at_end:
        if workers is None:
            # Before anything starts a thread: see `workers.processes.worker`.
            workers = start_workers(settings, when_needed=retry_forever)
            at_end.enter_context(workers)
        objects = open_objects(place)
        bounded = BoundedObjects(objects, options.patience_s)
        try:
            # A wrong URL or wrong credentials show now, not after the first conversion.
            if commit.read_root(bounded) is None:
                if not commit.holds_commits(bounded):
                    refuse_misplaced(objects)
                elif not dry_run:
                    commit.ensure_root(bounded)  # it was lost: readers would not find the store
        except StoreSilent:
            if not retry_forever:
                raise
        service = Service(dump, objects, workers.connect, options)
        if retry_forever and isinstance(workers, ProcessWorkers):
            service.workers = workers
        if service.retention is not None:
            at_end.callback(service.retention.close)
        yield service


#: A dump that somebody points at is usually finished: `ingest_dump` waits for less silence than `watch`.
SHORT_QUIET_S = 2.0


def ingest_dump(
    dump: str | Path,
    store: str | Path,
    *,
    settings: Settings | None = None,
    stop: threading.Event | None = None,
    observers: Sequence[Observer] = (),
    dry_run: bool = False,
) -> Report:
    """Take a dump into a store, once; what `dump-ingest ingest` does.

    Starts worker processes of its own unless `settings.scheduler` names a cluster.

    Args:
        dump: the directory that holds `rank_0`, `rank_1`, ..., or one of these; of any known layout.
        store: a directory or any fsspec URL.
        settings: everything else; default: as the environment says, and `quiet_s` = 2.
        stop: ends the work early when set; what is committed stays.
        observers: called with everything that happens.
        dry_run: with the setting `after_commit` delete, report what would be deleted, and delete nothing.

    Returns:
        What was committed, what the store had already, and what could not be taken and why.

    Raises:
        UsageError: the directory is not a dump, or the store would lie in it.
        StoreError: the store cannot be used.
        ClusterError: no worker answers.
    """
    chosen = settings or load(quiet_s=SHORT_QUIET_S).settings
    chosen_store = chosen.model_copy(update={"store": str(store)})
    return ingest_with(None, dump, chosen_store, stop or threading.Event(), observers, dry_run=dry_run)


def ingest_with(
    workers: Cluster | ProcessWorkers | None,
    dump: str | Path,
    chosen: Settings,
    stop: threading.Event,
    observers: Sequence[Observer] = (),
    *,
    dry_run: bool = False,
) -> Report:
    """Take a dump into `chosen.store`; see `ingest`. `workers` are from `start_workers`; None: its own."""
    if not str(dump):
        raise UsageError("the name of the dump is empty", hint="Name the directory that holds the dump.")
    tree = find_dump(Path(dump), rank_map=chosen.rank_map, layout=chosen.layout)
    # Whoever has a scheduler has other hosts, too, and one consolidator for all of them.
    consolidates = chosen.consolidate and chosen.scheduler is None
    with open_service(tree, chosen, workers=workers, dry_run=dry_run) as service:
        service.observers += observers
        if consolidates:
            service.observers.append(_load_consolidator)
        if isinstance(stop, StopRequest):
            stop.under_way = service.submitter.count_inflight
        report = ingest_once(service, stop)
        report.root, report.beside = tree.root, tensors_beside(Path(dump), tree.root)
        objects = service.committed.objects
    if consolidates and report.commits and not stop.is_set():
        from ingest.wiring.consolidation import consolidate_after  # deferred: see `_load_consolidator`

        with without_old_objects():
            consolidate_after(report, objects, rules_of(chosen.rules))
    return report


def _load_consolidator(event: Event) -> None:
    """Import what the end of a run takes, in 0.1 s, when its first job is done: workers are busy then."""
    if isinstance(event, JobConverted):
        import_module("ingest.wiring.consolidation")
