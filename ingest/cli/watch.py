"""`dump-ingest watch`: beside a running job, until told to stop."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ingest.cli.common import ConfigOption, StoreOption, load_settings, stop_on_signals
from ingest.cli.ingest import (
    AfterCommitOption,
    DeviceLayoutOption,
    KeepAnomalousOption,
    KeepLastOption,
    QuietOption,
    RankMapOption,
    ReplaceOption,
    SchedulerOption,
    WorkersOption,
)

if TYPE_CHECKING:
    from ingest.layouts.base import Dump
    from ingest.settings import Settings

NAME = "watch"


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
    """Take each step of a running job into the store as soon as it is complete.

    SIGTERM finishes what is under way and exits with 0; a second one exits at once. After a crash, start it
    again: the store knows what is done.

    [bold]dump-ingest watch /data/dump --store s3://bucket/run.zarr --metrics 0.0.0.0:9108[/]
    """
    import structlog
    from prometheus_client import CollectorRegistry

    from ingest.cli.sources import refuse_idle
    from ingest.metrics import WatcherMetrics, serve
    from ingest.reporting.logs import ServiceLog, configure
    from ingest.watching.fs_events import watch_events
    from ingest.wiring import open_service, open_webhook
    from workers import events
    from workers.rules.load import load_rules

    settings = load_settings(
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
    refuse_idle(settings, keep_last=keep_last, keep_anomalous=keep_anomalous)
    configure(settings.log_level, settings.log_format)
    log = structlog.get_logger("dump_ingest")
    stop = stop_on_signals()
    rules = load_rules(settings.rules).enabled.of_steps  # what is wrong with them shows now
    registry = CollectorRegistry()
    seen = WatcherMetrics(registry, rules=[(rule.name, rule.severity) for rule in rules])
    if settings.metrics:
        events.subscribe(seen.observe_event)
        serve(registry, settings.metrics)
    found = _wait_for_dump(dump, stop, settings, log)
    if found is None:
        return
    with open_webhook(settings) as webhook, open_service(found, settings, retry_forever=True) as service:
        service.observers += [seen.observe, ServiceLog().observe]
        if webhook is not None:
            service.observers.append(webhook.observe)
        log.info("watching", dump=str(found.root), store=settings.store)
        with watch_events(found.root, service.schedule.note_change):
            service.watch(stop, drain_s=settings.drain_s)
        log.info("stopped")


def _wait_for_dump(directory: Path, stop: threading.Event, settings: Settings, log: Any) -> Dump | None:
    """Return the dump once there is one; None when told to stop before."""
    from ingest.layouts.detect import find_dump
    from workers.errors import DumpIngestError

    said = ""
    while not stop.is_set():
        try:
            return find_dump(directory, rank_map=settings.rank_map)
        except DumpIngestError as exc:
            if exc.message != said:
                log.warning("waiting_for_dump", reason=exc.message)
            said = exc.message
        stop.wait(settings.poll_s)
    return None
