"""The commands that fill a store: `ingest` a dump once, `watch` one that grows."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ingest.cli.exits import EXIT_INTERRUPTED, EXIT_PARTLY, end_now, run_beside, stop_on_signals
from ingest.cli.options import (
    ConfigOption,
    Flags,
    JsonOption,
    RankOption,
    StepOption,
    StoreOption,
    load_settings_with_store,
    refuse_idle_flags,
    takes_settings,
)
from ingest.service.stopping import StopRequest, left_s
from workers import events
from workers.errors import AccessDenied, DumpIngestError, UsageError
from workers.host.heartbeat import beat, tell_ready

if TYPE_CHECKING:
    from ingest.layouts.base import Dump
    from ingest.service.one_shot import Backlog, Readiness
    from ingest.settings import Settings


#: How long the rest may take after what is under way was drained or dropped, in seconds: closing connections,
#: ending workers. Then the process ends all the same, with 1.
_LATE_S = 20.0


_LEFT_HINT = (
    "These steps are not in the store. While their dump exists, `dump-ingest ingest DUMP --store STORE` "
    "takes them; a larger drain_s, or `watch --finish`, leaves fewer."
)


@takes_settings(
    "scheduler",
    "workers",
    "nice",
    "cpus",
    "cpu_share",
    "quiet_s",
    "replace",
    "continues",
    "rank_map",
    "layout",
    "keep_device_layout",
    "pool",
    "after_commit",
    "keep_last",
    "keep_anomalous",
    "expected_ranks",
    "black_box",
)
def watch_command(
    dump: Annotated[
        Path | None,
        typer.Argument(
            metavar="DUMP",
            help="The directory that holds, or will hold, rank_0, rank_1, ...",
            show_default=False,
            readable=False,
        ),
    ] = None,
    store: StoreOption = None,
    *,
    flags: Flags,
    finish: Annotated[
        bool | None,
        typer.Option(
            "--finish",
            help="On SIGTERM, take everything that the dump has first, as it is: the job has ended.",
            show_default=False,
        ),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to serve /metrics and /steps.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say for each step what it waits for and why, and exit.")
    ] = False,
    watcher: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="HOST:PORT",
            help="With --explain: ask the running watcher that serves its metrics there.",
            show_default=False,
        ),
    ] = None,
    rank: RankOption = None,
    step: StepOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Ingest each step of a running job as soon as it is complete.

    On SIGTERM, it finishes the work in progress, for drain_s seconds at most. It exits with 0 if everything
    that the dump has is in the store, else with 4. A second SIGTERM ends it at once. After a crash, start it
    again: the store knows what is done.

    [bold]dump-ingest watch /data/dump --store s3://bucket/run.zarr --metrics 0.0.0.0:9108[/]

    With --explain, it scans the dump once, writes nothing, and says for each step what it waits for and why.
    With --from, a running watcher answers. --rank, --step and --json belong to --explain.

    [bold]dump-ingest watch --explain --from host:9108 --rank 3 --step 40[/]
    """
    flags |= {
        "store": store,
        "finish": finish,
        "metrics": metrics,
    }
    if explain:
        from ingest.cli.printing import explained  # deferred: the same
        from ingest.cli.question import print_answer  # deferred: numpy takes 0.1 s

        if watcher is None:
            from ingest.wiring.services import explain_steps  # deferred: 0.8 s

            rows = explain_steps(_named(dump), load_settings_with_store(config, **flags).settings)
        else:
            from ingest.service.live_watcher import fetch_steps  # deferred: 0.5 s with the service

            rows = fetch_steps(watcher)
        print_answer(explained(rows, rank, step), as_json=json)
        return
    belongs = {"--from": watcher, "--rank": rank, "--step": step, "--json": json}
    for flag in (flag for flag, value in belongs.items() if value):
        raise UsageError(f"{flag} does nothing without --explain")
    settings = load_settings_with_store(config, **flags).settings
    refuse_idle_flags(settings, **flags)
    settings.cpu_limits.apply()
    stop = stop_on_signals(settings.drain_s + _LATE_S)
    run_beside(partial(_watch, _named(dump), settings, stop))


def _named(dump: Path | None) -> Path:
    if dump is None:
        raise UsageError("no dump", hint="Name its directory: dump-ingest watch DUMP --store URL.")
    return dump


def _watch(dump: Path, settings: Settings, stop: StopRequest) -> None:
    # deferred: together 1 s, which neither help nor --explain has to spend
    import structlog
    from prometheus_client import CollectorRegistry

    from ingest.metrics import Scrapes, WatcherMetrics, serve
    from ingest.reporting.log_output import configure
    from ingest.reporting.logs import ServiceLog, StatusLine, open_webhook
    from ingest.service.live_watcher import PATH
    from ingest.service.one_shot import Backlog, LiveSteps, Readiness, finish
    from ingest.steps.watcher import watch_events
    from ingest.wiring.services import open_service
    from ingest.wiring.stores import place_of_store
    from workers.rules.schema import load_rules

    configure(settings.log_level, settings.log_format)
    log = structlog.get_logger("dump_ingest")
    rules = load_rules(settings.rules).enabled.step_rules  # a wrong rule is reported now
    registry = CollectorRegistry()
    watcher_metrics = WatcherMetrics(
        registry,
        rules=[(rule.name, rule.severity) for rule in rules],
        store=place_of_store(settings, None).url,
        expected_ranks=settings.expected_ranks,
        finishes=settings.finish,
    )
    live, readiness, scrapes = LiveSteps(), Readiness(), Scrapes()
    if settings.metrics:
        events.subscribe(watcher_metrics.observe)
        serve(
            registry,
            settings.metrics,
            {PATH: live.page},
            lambda: readiness.reason,
            scrapes,
            trigger=live.trigger,
        )
    tell_ready()
    tree = _wait_for_dump(dump, stop, settings, readiness)
    if tree is None:
        return
    with open_webhook(settings) as webhook, open_service(tree, settings, retry_forever=True) as service:
        live.attach(service)
        backlog = Backlog(service.table)
        service_log = ServiceLog()
        service.observers += [
            watcher_metrics.observe,
            service_log.observe,
            readiness.observe,
            scrapes.observe,
        ]
        events.subscribe(service_log.observe)
        if webhook is not None:
            service.observers.append(webhook.observe)
        status = StatusLine(lambda: backlog.steps, service.submitter.count_inflight)
        service.observers.append(status.observe)
        is_drawn = sys.stderr.isatty() and settings.log_format != "json"
        log.info("watching", dump=str(tree.root), store=settings.store)
        with (
            status.shown() if is_drawn else nullcontext(),
            watch_events(tree.root, service.schedule.note_change, service.schedule.hears_all),
        ):
            stop.under_way = service.submitter.count_inflight
            service.watch(
                stop,
                drain_s=settings.drain_s,
                before_end=partial(finish, service) if settings.finish else None,
            )
    if settings.finish:
        scrapes.wait_for_last(left_s(stop, settings.drain_s), has_news=backlog.steps > 0)
    _end(backlog, is_interrupt=stop.is_interrupt)


def _end(backlog: Backlog, *, is_interrupt: bool) -> None:
    import structlog  # deferred: as above

    log = structlog.get_logger("dump_ingest")
    if backlog.steps:
        log.warning("stopped", left_steps=backlog.steps, left_bytes=backlog.nbytes, hint=_LEFT_HINT)
    else:
        log.info("stopped", left_steps=0, left_bytes=0)
    if is_interrupt:
        end_now(EXIT_INTERRUPTED)
    if backlog.steps:
        raise typer.Exit(EXIT_PARTLY)


def _wait_for_dump(
    directory: Path, stop: threading.Event, settings: Settings, readiness: Readiness
) -> Dump | None:
    """Return the dump as soon as the directory holds one; None if `stop` is set before.

    With `finish`, the directory is scanned once more then.

    Raises:
        UsageError: the directory is a store.
    """
    import structlog  # deferred: as above

    from ingest.layouts.detect import StoreNamedAsDump, find_dump  # deferred: 0.2 s
    from ingest.reporting.log_output import Reminders  # deferred: as above

    log = structlog.get_logger("dump_ingest")
    reminders = Reminders()
    # A job may write checkpoints before it dumps, and whoever has found a root does not look for others.
    find = partial(
        find_dump, directory, rank_map=settings.rank_map, layout=settings.layout, with_checkpoints=False
    )
    while not stop.is_set():
        beat()
        try:
            tree = find()
        except StoreNamedAsDump:
            raise
        except DumpIngestError as exc:
            readiness.reason = exc.message if isinstance(exc, AccessDenied) else ""
            reminders.keep([exc.message])
            if reminders.is_due(exc.message):
                log.warning("waiting_for_dump", reason=exc.message, hint=exc.hint)
        else:
            readiness.reason = ""
            return tree
        stop.wait(settings.poll_s)
    if settings.finish:
        with suppress(DumpIngestError):
            return find()
    return None


@takes_settings(
    "scheduler",
    "workers",
    "nice",
    "cpus",
    "cpu_share",
    "quiet_s",
    "replace",
    "continues",
    "recheck",
    "rank_map",
    "layout",
    "keep_device_layout",
    "pool",
    "after_commit",
    "keep_last",
    "keep_anomalous",
)
def ingest_command(
    dump: Annotated[
        # Not checked by typer: for a directory of another user, `ingest_dump` has the better message.
        Path,
        typer.Argument(metavar="DUMP", help="The directory that holds rank_0, rank_1, ...", readable=False),
    ],
    store: StoreOption = None,
    *,
    flags: Flags,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --after-commit delete: only print what would be deleted.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Ingest a dump into a store once, and print what was in it.

    Steps that the store already has are left alone: after any failure, run the same command again.

    Exits with 4 if only a part could be ingested, if files are quarantined, or if a directory looks like a
    rank or a step and is none.

    [bold]dump-ingest ingest /data/dump --store s3://bucket/run.zarr[/]
    [bold]dump-ingest ingest /data/mine --store run.zarr --layout 'rank{rank}/step{step}/{module}.{io}.pt'[/]
    """
    # deferred: dask, numba and zarr take 1.4 s to import
    from ingest.cli.ingest_report import IngestProgress, exit_as, print_report, progress_bar, say_missing
    from ingest.dispatch.runners import start_workers
    from ingest.wiring.services import SHORT_QUIET_S, ingest_with

    loaded = load_settings_with_store(
        config,
        store=store,
        **flags,
    )
    settings = loaded.settings
    if loaded.origins["quiet_s"] == "default":
        settings = settings.model_copy(update={"quiet_s": SHORT_QUIET_S})
    refuse_idle_flags(settings, dry_run=dry_run, **flags)
    settings.cpu_limits.apply()
    stop = stop_on_signals()
    started = time.monotonic()
    bar = progress_bar() if sys.stderr.isatty() else None
    # Workers first: they are copies of this process, which must not have another thread.
    with start_workers(settings) as own_workers, IngestProgress(bar) as progress:
        work = partial(ingest_with, own_workers, dump, settings, stop, [progress.observe], dry_run=dry_run)
        report = run_beside(work)
    print_report(report, settings, time.monotonic() - started, dry_run=dry_run, json=json)
    if not stop.is_set():
        say_missing(report, settings)
    exit_as(report, interrupted=stop.is_set())
