"""`dump-ingest consolidate`: statistics and digests of all ranks and steps in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ingest.cli.common import (
    EXIT_DAMAGE,
    ConfigOption,
    JsonOption,
    StoreArgument,
    err,
    load_settings,
    print_json,
    say,
    stop_on_signals,
)
from ingest.cli.ingest import SchedulerOption, WorkersOption

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
    from ingest.metrics import ConsolidatorMetrics
    from ingest.settings import Settings
    from workers.events import Observer

NAME = "consolidate"
#: How often one that stands by tries again.
_STANDBY_S = 5.0


def command(
    store: StoreArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until told to stop.")] = False,
    poll: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How often to look.")] = 5.0,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="With --follow: how long a step waits for ranks that have not committed it.",
        ),
    ] = 60.0,
    check: Annotated[
        bool, typer.Option("--check", help="Read every commit again, not only what is new or announced.")
    ] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the view anew.")] = False,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --follow: where to serve /metrics."),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Bring the consolidated view of a store up to date: one cube per statistic over step, rank and tensor.

    `ingest` does it at its end; run it beside `watch`, one for all hosts. It holds nothing that is not in the
    steps themselves, and may be stopped, killed, or begun anew at any time.

    [bold]dump-ingest consolidate run.zarr[/]
    [bold]dump-ingest consolidate s3://bucket/run.zarr --follow --metrics 0.0.0.0:9109[/]
    """
    from ingest.wiring import open_consolidator

    settings = load_settings(
        config, store=store, scheduler=scheduler, workers=workers, consolidator_metrics=metrics
    ).settings
    stop = stop_on_signals()
    if follow:
        _follow(settings, stop, poll_s=poll, patience_s=patience, rebuild=rebuild, json=json)
        return
    with open_consolidator(settings) as consolidator:
        taken = consolidator.once(check=check, rebuild=rebuild)
        _say(taken, consolidator, json=json)
    if taken.damaged:
        raise typer.Exit(EXIT_DAMAGE)


def _follow(
    settings: Settings,
    stop: threading.Event,
    *,
    poll_s: float,
    patience_s: float,
    rebuild: bool,
    json: bool,
) -> None:
    """Go on until told to stop; while another one holds the view, or the store is away, stand by."""
    from prometheus_client import CollectorRegistry

    from ingest.metrics import ConsolidatorMetrics, serve
    from ingest.reporting.logs import SeriesLog, configure
    from ingest.wiring import open_webhook
    from workers import events
    from workers.rules.load import load_rules

    rules = load_rules(settings.rules).enabled.of_series  # what is wrong with them shows now
    registry = CollectorRegistry()
    seen = ConsolidatorMetrics(registry, rules=[(rule.name, rule.severity) for rule in rules])
    configure(settings.log_level, settings.log_format)
    if settings.consolidator_metrics:
        events.subscribe(seen.observe)
        serve(registry, settings.consolidator_metrics)
    with open_webhook(settings) as webhook:
        observers = [seen.observe, SeriesLog().observe, *([webhook.observe] if webhook else [])]
        _hold(
            settings, stop, seen, observers, poll_s=poll_s, patience_s=patience_s, rebuild=rebuild, json=json
        )


def _hold(
    settings: Settings,
    stop: threading.Event,
    seen: ConsolidatorMetrics,
    observers: Sequence[Observer],
    *,
    poll_s: float,
    patience_s: float,
    rebuild: bool,
    json: bool,
) -> None:
    """Write the view whenever nobody else does."""
    from ingest.consolidating.lease import LeaseHeld
    from ingest.wiring import open_consolidator
    from workers.errors import ClusterError, StoreUnavailable

    said = ""
    while not stop.is_set():
        try:
            _demand_store(settings)
            with open_consolidator(settings, patience_s=patience_s) as consolidator:
                consolidator.observers += observers
                seen.lease(held=True)
                if rebuild:
                    consolidator.once(rebuild=True)
                    rebuild = False
                said = ""
                consolidator.follow(
                    stop, poll_s=poll_s, observe=lambda one: _say(one, consolidator, json=json)
                )
        except (LeaseHeld, StoreUnavailable, ClusterError) as exc:
            if exc.message.partition(" (")[0] != said:
                say(exc.message, before="[yellow]waiting:[/] ")
            said = exc.message.partition(" (")[0]
            seen.lease(held=False)
            stop.wait(_STANDBY_S)


def _demand_store(settings: Settings) -> None:
    """Raise StoreUnavailable while there is none: watchers make it, which often start at the same time."""
    from ingest.wiring import has_store
    from workers.errors import StoreUnavailable

    if not has_store(settings):
        raise StoreUnavailable(f"{settings.store}: no dump-ingest store yet")


def _say(taken: StepsConsolidated, consolidator: Consolidator, *, json: bool) -> None:
    view = consolidator.view()
    if json:
        row: dict[str, Any] = {
            "appended": list(taken.appended),
            "rewritten": list(taken.rewritten),
            "waiting": list(taken.waiting),
            "damaged": list(taken.damaged),
            "findings": sum(sum(one.found.totals.values()) for one in taken.findings),
        }
        print_json(row | {name: getattr(view, name, 0) for name in ("steps", "ranks", "tensors")})
    else:
        from ingest.reader.ranges import format_ranges

        parts = {
            "steps taken in": taken.appended,
            "written again": taken.rewritten,
            "waiting for ranks": taken.waiting,
        }
        said = [f"{what}: {format_ranges(steps)}" for what, steps in parts.items() if steps]
        err.print("; ".join(said) or "nothing is new")
        if view is not None:
            lengths = ((view.steps, "step"), (view.ranks, "rank"), (view.tensors, "tensor"))
            sizes = (f"{count} {what}{'s' * (count != 1)}" for count, what in lengths)
            err.print(f"the view has {', '.join(sizes)}")
    for one in taken.findings:
        if total := sum(one.found.totals.values()):
            counts = ", ".join(f"{rule} {count}" for rule, count in one.found.totals.items())
            say(f"step {one.step}: {total} ({counts}); `dump-ingest anomalies`", before="[yellow]found:[/] ")
    for reason in taken.damaged:
        say(reason, before="[bold red]damaged:[/] ")
