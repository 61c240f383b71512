"""`dump-ingest watch`: next to a running job, until told to stop; and what it does with each step."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ingest.cli.common import (
    ConfigOption,
    JsonOption,
    RankOption,
    StepOption,
    StoreOption,
    load_settings,
    print_json,
    print_table,
    say,
    step_name,
    stop_on_signals,
)
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
from ingest.cli.sources import refuse_idle
from workers.errors import DumpIngestError, UsageError

if TYPE_CHECKING:
    from ingest.layouts.base import Dump
    from ingest.settings import Settings
    from ingest.steps.explain import StepRow

NAME = "watch"


def command(
    dump: Annotated[
        Path | None,
        typer.Argument(
            help="The directory that holds, or will hold, rank_0, rank_1, ...",
            show_default=False,
            readable=False,
        ),
    ] = None,
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
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to serve /metrics and /steps.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say of each step what it waits for and why, and end.")
    ] = False,
    watcher: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="With --explain: ask the running watcher that serves its metrics there.",
            show_default=False,
        ),
    ] = None,
    rank: RankOption = None,
    step: StepOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Take each step of a running job into the store as soon as it is complete.

    SIGTERM finishes what is under way and exits with 0; a second one exits at once. After a crash, start it
    again: the store knows what is done.

    [bold]dump-ingest watch /data/dump --store s3://bucket/run.zarr --metrics 0.0.0.0:9108[/]

    With --explain, look once, write nothing, and say of each step where it is and why: of a dump, or of the
    watcher that runs. --rank, --step and --json are for that.

    [bold]dump-ingest watch --explain --from http://host:9108 --rank 3 --step 40[/]
    """
    flags: dict[str, Any] = {
        "store": store,
        "scheduler": scheduler,
        "workers": workers,
        "quiet_s": quiet,
        "replace": replace,
        "rank_map": rank_map,
        "keep_device_layout": keep_device_layout,
        "after_commit": after_commit,
        "keep_last": keep_last,
        "keep_anomalous": keep_anomalous,
        "metrics": metrics,
    }
    if explain:
        rows = _rows_of_dump(_named(dump), config, flags) if watcher is None else _rows_of_watcher(watcher)
        _print_rows(_chosen(rows, rank, step), json=json)
        return
    _refuse_without_explain({"--from": watcher, "--rank": rank, "--step": step, "--json": json})
    settings = load_settings(config, **flags).settings
    refuse_idle(settings, keep_last=keep_last, keep_anomalous=keep_anomalous)
    _watch(_named(dump), settings)


def _named(dump: Path | None) -> Path:
    if dump is None:
        raise UsageError("no dump", hint="Name its directory: dump-ingest watch DUMP --store URL.")
    return dump


def _refuse_without_explain(flags: Mapping[str, object]) -> None:
    given = [name for name, value in flags.items() if value]
    if given:
        raise UsageError(f"{given[0]} does nothing without --explain")


def _watch(dump: Path, settings: Settings) -> None:
    import structlog  # deferred: 0.1 s; neither help nor --explain needs it
    from prometheus_client import CollectorRegistry  # deferred: the same, 0.05 s

    from ingest.metrics import WatcherMetrics, serve  # deferred: 0.3 s with what it observes
    from ingest.reporting.logs import ServiceLog, configure  # deferred: 0.3 s
    from ingest.service.live_steps import PATH, LiveSteps  # deferred: 0.5 s with the service
    from ingest.watching.fs_events import watch_events  # deferred: 0.05 s
    from ingest.wiring import open_service, open_webhook  # deferred: 0.8 s
    from workers import events
    from workers.rules.load import load_rules  # deferred: 0.3 s

    configure(settings.log_level, settings.log_format)
    log = structlog.get_logger("dump_ingest")
    stop = stop_on_signals()
    rules = load_rules(settings.rules).enabled.of_steps  # what is wrong with them shows now
    registry = CollectorRegistry()
    seen = WatcherMetrics(registry, rules=[(rule.name, rule.severity) for rule in rules])
    live = LiveSteps()
    if settings.metrics:
        events.subscribe(seen.observe_event)
        serve(registry, settings.metrics, {PATH: live.page})
    tree = _wait_for_dump(dump, stop, settings, log)
    if tree is None:
        return
    with open_webhook(settings) as webhook, open_service(tree, settings, retry_forever=True) as service:
        live.attach(service)
        service.observers += [seen.observe, ServiceLog().observe]
        if webhook is not None:
            service.observers.append(webhook.observe)
        log.info("watching", dump=str(tree.root), store=settings.store)
        with watch_events(tree.root, service.schedule.note_change):
            service.watch(stop, drain_s=settings.drain_s)
        log.info("stopped")


def _wait_for_dump(directory: Path, stop: threading.Event, settings: Settings, log: Any) -> Dump | None:
    """Return the dump as soon as the directory is one; None when told to stop before."""
    from ingest.layouts.detect import find_dump  # deferred: 0.2 s

    reported = ""
    while not stop.is_set():
        try:
            return find_dump(directory, rank_map=settings.rank_map)
        except DumpIngestError as exc:
            if exc.message != reported:
                log.warning("waiting_for_dump", reason=exc.message)
            reported = exc.message
        stop.wait(settings.poll_s)
    return None


def _rows_of_dump(dump: Path, config: Path | None, flags: Mapping[str, Any]) -> list[StepRow]:
    from ingest.wiring import explain_steps  # deferred: 0.8 s

    return explain_steps(dump, load_settings(config, **flags).settings)


def _rows_of_watcher(url: str) -> list[StepRow]:
    from ingest.service.live_steps import fetch_steps  # deferred: 0.5 s with the service

    return fetch_steps(url)


def _chosen(
    rows: Sequence[StepRow], ranks: Sequence[int] | None, steps: Sequence[int] | None
) -> list[StepRow]:
    """Return the rows of these ranks and steps, of all where none is named."""
    return [row for row in rows if (not ranks or row.rank in ranks) and (not steps or row.step in steps)]


def _print_rows(rows: Sequence[StepRow], *, json: bool) -> None:
    if json:
        print_json([row.to_dict() for row in rows])
        return
    columns = ["rank", "step", "phase", "files", "why"]
    with_source = any(row.source for row in rows)
    print_table(
        [*columns, "dump files"] if with_source else columns,
        [[*_cells(row), *([_source_cell(row)] if with_source else [])] for row in rows],
        right=("files",),
    )
    phases = Counter(row.phase for row in rows)
    say(", ".join(f"{count} {phase}" for phase, count in phases.most_common()) or "no such step in the dump")


def _cells(row: StepRow) -> list[str]:
    return [str(row.rank), step_name(row.step), row.phase, str(row.files), row.reason]


def _source_cell(row: StepRow) -> str:
    return f"{row.source}: {row.source_reason}" if row.source else "-"
