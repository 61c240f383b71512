"""Puts the service together from settings: the only place that knows all of its parts."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ingest.consolidating import sketching
from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.consolidating.runners import in_threads, on_cluster
from ingest.consolidating.sketching import SketchReport
from ingest.disk.pressure import Pressure, parse_threshold
from ingest.dispatch.cluster import Cluster
from ingest.dispatch.submitter import DispatchLimits
from ingest.dump_retention.policy import RetentionPolicy
from ingest.findings.evaluator import SeriesEvaluator
from ingest.findings.incidents import incidents
from ingest.layouts.base import Dump
from ingest.layouts.detect import find_dump
from ingest.reader.catalog import Catalog
from ingest.reader.choice import Choice
from ingest.reader.require import require_store
from ingest.reporting.incident_posts import IncidentPosts
from ingest.reporting.logs import PostLog
from ingest.reporting.webhook import Webhook
from ingest.service.build import ServiceOptions, build_service
from ingest.service.explaining import explain_dump
from ingest.service.one_shot import ingest_once
from ingest.service.report import Report
from ingest.service.service import Service
from ingest.service.stopping import StopRequest
from ingest.settings import Settings, load
from ingest.steps.completeness import CompletenessPolicy
from ingest.steps.explain import StepRow
from ingest.steps.policy import StepPolicy
from workers.errors import StoreError, StoreSilent, UsageError
from workers.events import Observer
from workers.rules.load import load_rules
from workers.rules.values import RuleSet
from workers.store import commit
from workers.store.backends.bounded import BoundedObjects
from workers.store.model import Grid, StoreAddress
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.tasks.sketch import Sketched

#: How long the loop of a watcher waits for the store, in seconds. What takes longer is left to the workers.
_PATIENCE_S = 10.0


def grid_of(settings: Settings) -> Grid:
    """Return how payloads are cut into chunks, shards and jobs."""
    return Grid(
        int(settings.chunk_size),
        int(settings.shard_size),
        int(settings.job_size),
        settings.keep_device_layout,
    )


def address_of_store(settings: Settings) -> StoreAddress:
    """Return where the store is, and how long to wait for its answers.

    Raises:
        UsageError: its URL or an option is wrong.
    """
    return resolve(settings.store or "", settings.store_options, timeout_s=settings.store_timeout_s)


def place_of_store(settings: Settings, dump: Dump | None) -> StoreAddress:
    """Return where the store is to be.

    Raises:
        UsageError: the store would lie in the dump, or where the workers cannot see it; or its URL is wrong.
    """
    store = address_of_store(settings)
    if store.url.startswith("memory:"):
        raise UsageError(
            f"{store.url} is in the memory of one process, and workers are processes of their own",
            hint="Name a directory, or a URL such as s3://bucket/run.zarr.",
        )
    if dump is not None and Path(store.url).resolve().is_relative_to(dump.root.resolve()):
        raise UsageError(
            f"the store {store.url} would lie in the dump {dump.root}",
            hint="Name a directory elsewhere: the store would be taken for a part of the dump.",
        )
    return store


def options_of(settings: Settings, *, retry_forever: bool = False, dry_run: bool = False) -> ServiceOptions:
    """Return what a service is to do.

    Raises:
        UsageError: a rule is wrong.
    """
    completeness = CompletenessPolicy(settings.quiet_s, settings.settle_s)
    deletes = settings.after_commit == "delete"
    return ServiceOptions(
        StepPolicy(completeness, settings.order, replace=settings.replace),
        grid_of(settings),
        DispatchLimits(int(settings.inflight_size)),
        settings.worker_resources,
        settings.host or socket.gethostname(),
        load_rules(settings.rules).enabled,
        settings.poll_s,
        retry_forever,
        # A watcher never takes again what was removed, or it would undo each `gc`.
        take_removed=settings.replace and not retry_forever,
        pressure=Pressure(settings.under_pressure, parse_threshold(settings.pressure_free)),
        continues=frozenset(settings.continues),
        recheck_rate=_recheck_rate(settings, watches=retry_forever),
        retention=RetentionPolicy(settings.keep_last, settings.keep_anomalous) if deletes else None,
        dry_run=dry_run,
        patience_s=min(_PATIENCE_S, settings.store_timeout_s) if retry_forever else settings.store_timeout_s,
        task_timeout_s=settings.task_timeout_s,
        sketches=settings.sketches,
    )


def _recheck_rate(settings: Settings, *, watches: bool) -> float:
    """Return how many bytes of committed files are read again each second: a run of `ingest` does it once."""
    if watches:
        return float(settings.recheck_rate)
    return math.inf if settings.recheck else 0.0


def explain_steps(dump: str | Path, settings: Settings) -> list[StepRow]:
    """Explain where each step of a dump is and why; what `dump-ingest watch --explain` prints.

    Looks at dump and store once, and writes nothing; needs no cluster.

    Raises:
        UsageError: the directory is not a dump, or the store would lie in it.
        StoreError: the store cannot be used.
    """
    tree = find_dump(Path(dump), rank_map=settings.rank_map, layout=settings.layout)
    objects = open_objects(place_of_store(settings, tree))
    commit.read_root(objects)
    return explain_dump(tree, objects, options_of(settings, retry_forever=True))


@contextmanager
def open_service(
    dump: Dump,
    settings: Settings,
    *,
    retry_forever: bool = False,
    dry_run: bool = False,
) -> Iterator[Service]:
    """Wire the service for a dump; its cluster, started when first needed, ends with it.

    Args:
        dump: the dump.
        settings: everything else.
        retry_forever: whether to wait for a store or cluster that does not answer, and to try again for ever.
        dry_run: whether only to report what would be deleted in the dump.

    Raises:
        UsageError: the store would lie in the dump, or where the workers cannot see it; or a rule is wrong.
        StoreError: the store cannot be used.
    """
    options = options_of(settings, retry_forever=retry_forever, dry_run=dry_run)
    objects = open_objects(place_of_store(settings, dump))
    bounded = BoundedObjects(objects, options.patience_s)
    try:
        # A wrong URL or wrong credentials show now, not after the first conversion.
        if commit.read_root(bounded) is None and not dry_run and commit.holds_commits(bounded):
            commit.ensure_root(bounded)  # it was lost: readers would not find the store
    except StoreSilent:
        if not retry_forever:
            raise
    with Cluster(settings) as cluster, ExitStack() as at_end:
        service = build_service(dump, objects, cluster.connect, options)
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

    Starts worker processes of its own unless `settings.scheduler` names a cluster, so a script needs the
    usual `if __name__ == "__main__":`.

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
    tree = find_dump(Path(dump), rank_map=chosen.rank_map, layout=chosen.layout)
    stop = stop or threading.Event()
    chosen_store = chosen.model_copy(update={"store": str(store)})
    with open_service(tree, chosen_store, dry_run=dry_run) as service:
        service.observers += observers
        if isinstance(stop, StopRequest):
            stop.under_way = service.submitter.count_inflight
        report = ingest_once(service, stop)
        objects = service.committed.objects
    # Whoever has a scheduler has other hosts, too, and one consolidator for all of them.
    if chosen.consolidate and chosen.scheduler is None and report.commits and not stop.is_set():
        _consolidate_after(report, objects, load_rules(chosen.rules).enabled)
    return report


def _consolidate_after(report: Report, objects: ObjectStore, rules: RuleSet) -> None:
    """Bring the consolidated view up to date; record why if that fails: the commits stand without it."""
    try:
        with Consolidator(objects, keeper=SeriesEvaluator(objects, rules)) as consolidator:
            report.series = consolidator.once().findings
    except StoreError as exc:
        report.not_consolidated = exc


@contextmanager
def open_webhook(settings: Settings) -> Iterator[Webhook | None]:
    """Post incidents to the webhook that the settings name, and log what becomes of them; None for none."""
    if settings.webhook is None:
        yield None
        return
    catalog = Catalog(open_objects(address_of_store(settings)))
    posts = IncidentPosts(lambda: incidents(catalog), settings.webhook_severity)
    page_url = settings.page_url or ""
    with Webhook(settings.webhook, catalog.url, settings.webhook_severity, posts, page_url) as webhook:
        webhook.observers.append(PostLog().observe)
        yield webhook


def has_store(settings: Settings) -> bool:
    """Return whether the store that the settings name exists.

    Raises:
        UsageError: its URL is wrong.
        StoreError: the store cannot be used.
    """
    objects = open_objects(address_of_store(settings))
    return commit.read_root(objects) is not None


@contextmanager
def open_consolidator(settings: Settings, *, patience_s: float = 0.0) -> Iterator[Consolidator]:
    """Hold the consolidated view of the store that the settings name, to write it.

    Its tasks run in this process, unless the settings name a scheduler or a number of workers.

    Raises:
        UsageError: the store does not exist, or its URL is wrong.
        LeaseHeld: another process writes the view.
        ClusterError: no worker answers.
    """
    rules = load_rules(settings.rules).enabled
    objects = open_objects(address_of_store(settings))
    require_store(objects, objects.address.url)
    with Cluster(settings) as cluster:
        own = settings.scheduler is None and settings.workers is None
        run = in_threads if own else on_cluster(cluster.connect())
        keeper = SeriesEvaluator(objects, rules)
        with Consolidator(objects, run, patience_s, keeper=keeper) as consolidator:
            yield consolidator


def consolidate(
    store: str | Path,
    *,
    check: bool = False,
    rebuild: bool = False,
    settings: Settings | None = None,
) -> StepsConsolidated:
    """Bring the consolidated view of a store up to date, once; what `dump-ingest consolidate` does.

    Args:
        store: a directory or any fsspec URL.
        check: read every commit again, not only new ones and those that were announced as replaced.
        rebuild: make the whole view again.
        settings: everything else; tasks run in this process unless they name `scheduler` or `workers`.

    Raises:
        UsageError: the store does not exist.
        LeaseHeld: another process writes the view.
        StoreError: the store refused.
    """
    chosen = (settings or load().settings).model_copy(update={"store": str(store)})
    with open_consolidator(chosen) as consolidator:
        return consolidator.once(check=check, rebuild=rebuild)


def sketch(
    store: str | Path,
    *,
    rank: Choice = None,
    step: Choice = None,
    settings: Settings | None = None,
    progress: Callable[[Sketched], None] = lambda _: None,
) -> SketchReport:
    """Add histograms to steps that were committed without them; what `dump-ingest sketch` does.

    Args:
        store: a directory or any fsspec URL.
        rank: one rank, or several; all if None.
        step: one step, or several; all, and the run files, if None.
        settings: everything else; tasks run in this process unless they name `scheduler` or `workers`.
        progress: is called with each step when it is done.

    Raises:
        UsageError: the store does not exist, or a rank or step is not in it.
        StoreError: the store refused. What was added stays.
        ClusterError: no worker answers.
    """
    chosen = (settings or load().settings).model_copy(update={"store": str(store)})
    objects = open_objects(address_of_store(chosen))
    require_store(objects, objects.address.url)
    with Cluster(chosen) as cluster:
        own = chosen.scheduler is None and chosen.workers is None
        run = sketching.in_threads if own else sketching.on_cluster(cluster.connect())
        return sketching.sketch_steps(Catalog(objects), run, rank, step, progress)
