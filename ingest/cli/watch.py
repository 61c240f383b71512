"""`dump-ingest watch`: next to a running job, until SIGTERM."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ingest.cli.exits import stop_on_signals
from ingest.cli.opening import load_settings_with_store, refuse_idle_flags
from ingest.cli.options import (
    AfterCommitOption,
    ConfigOption,
    DeviceLayoutOption,
    KeepAnomalousOption,
    KeepLastOption,
    QuietOption,
    RankMapOption,
    ReplaceOption,
    SchedulerOption,
    StoreOption,
    WorkersOption,
)
from workers import events
from workers.errors import DumpIngestError

if TYPE_CHECKING:
    from ingest.layouts.base import Dump
    from ingest.settings import Settings


def command(
    dump: Annotated[
        Path,
        typer.Argument(help="The directory that holds, or will hold, rank_0, rank_1, ...", readable=False),
    ],
    store: StoreOption = None,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = None,
    replace: ReplaceOption = None,
    rank_map: RankMapOption = None,
    keep_device_layout: DeviceLayoutOption = None,
    after_commit: AfterCommitOption = None,
    keep_last: KeepLastOption = None,
    keep_anomalous: KeepAnomalousOption = None,
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to serve /metrics.")] = None,
    config: ConfigOption = None,
) -> None:
    """Ingest each step of a running job as soon as it is complete.

    On SIGTERM, it finishes the work in progress and exits with 0; a second SIGTERM ends it at once. After a
    crash, start it again: the store knows what is done.

    [bold]dump-ingest watch /data/dump --store s3://bucket/run.zarr --metrics 0.0.0.0:9108[/]
    """
    # deferred: dask, numba, zarr and structlog take 1.4 s to import
    import structlog
    from prometheus_client import CollectorRegistry

    from ingest.metrics import WatcherMetrics, serve
    from ingest.reporting.logs import ServiceLog, configure
    from ingest.watching.fs_events import waker
    from ingest.wiring import open_service, open_webhook
    from workers.rules.load import load_rules

    settings = load_settings_with_store(
        config,
        store=store,
        scheduler=scheduler,
        workers=workers,
        quiet_s=quiet,
        replace=replace,
        rank_map=rank_map,
        keep_device_layout=keep_device_layout,
        after_commit=after_commit,
        keep_last=keep_last,
        keep_anomalous=keep_anomalous,
        metrics=metrics,
    ).settings
    refuse_idle_flags(settings, keep_last=keep_last, keep_anomalous=keep_anomalous)
    configure(settings.log_level, settings.log_format)
    log = structlog.get_logger("dump_ingest")
    stop = stop_on_signals()
    rules = load_rules(settings.rules).enabled.of_steps  # a wrong rule is reported now
    registry = CollectorRegistry()
    watcher_metrics = WatcherMetrics(registry, rules=[(rule.name, rule.severity) for rule in rules])
    if settings.metrics:
        events.subscribe(watcher_metrics.observe)
        serve(registry, settings.metrics)
    detected = _wait_for_dump(dump, stop, settings, log)
    if detected is None:
        return
    with open_webhook(settings) as webhook, open_service(detected, settings, patient=True) as service:
        service.observers += [watcher_metrics.observe, ServiceLog().observe]
        if webhook is not None:
            service.observers.append(webhook.observe)
        log.info("watching", dump=str(detected.root), store=settings.store)
        with waker(detected.root, service.note_change):
            service.watch(stop, drain_s=settings.drain_s)
        log.info("stopped")


def _wait_for_dump(directory: Path, stop: threading.Event, settings: Settings, log: Any) -> Dump | None:
    """Return the dump as soon as the directory holds one; None if `stop` is set before."""
    from ingest.layouts.detect import find_dump  # deferred: numpy and numba take 0.3 s to import

    last_reason = ""
    while not stop.is_set():
        try:
            return find_dump(directory, rank_map=settings.rank_map)
        except DumpIngestError as exc:
            if exc.message != last_reason:
                log.warning("waiting_for_dump", reason=exc.message)
            last_reason = exc.message
        stop.wait(settings.poll_s)
    return None
