"""`dump-ingest consolidate`: statistics and digests of all ranks and steps in one place."""

from __future__ import annotations

from typing import Annotated

import typer

from ingest.cli.exits import EXIT_DAMAGE, EXIT_INTERRUPTED, end_now, stop_on_signals
from ingest.cli.options import (
    ConfigOption,
    Flags,
    JsonOption,
    StoreArgument,
    load_settings_with_store,
    takes_settings,
)


@takes_settings(
    "scheduler",
    "workers",
    "expected_ranks",
)
def command(
    store: StoreArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep going until SIGTERM.")] = False,
    poll: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="With --follow: how often to look for commits.")
    ] = 5.0,
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="With --follow: how long a step waits for ranks that have not committed it.",
        ),
    ] = 60.0,
    finish: Annotated[
        bool | None,
        typer.Option(
            "--finish",
            help="With --follow: on SIGTERM, take every commit first, as it is: the job has ended.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read every commit again, not only new and announced ones.")
    ] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build the view from scratch.")] = False,
    *,
    flags: Flags,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --follow: where to serve /metrics."),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Update the consolidated view: one array per statistic over step, rank and tensor.

    `ingest` does this at its end. Next to `watch`, run it with --follow, one process for all hosts. The view
    holds nothing that is not in the steps themselves: you may stop, kill or restart this at any time.
    Histograms and marginals are added to old steps by [bold]dump-ingest sketch[/], not here.

    Exits with 3 if a step is damaged.

    [bold]dump-ingest consolidate run.zarr[/]
    [bold]dump-ingest consolidate s3://bucket/run.zarr --follow --metrics 0.0.0.0:9109[/]
    """
    # deferred: dask, numba and zarr take 1.1 s to import
    from ingest.cli.consolidate_report import say_consolidated
    from ingest.wiring.consolidation import open_consolidator

    settings = load_settings_with_store(
        config,
        store=store,
        consolidator_metrics=metrics,
        finish=finish,
        **flags,
    ).settings
    if follow:
        stop = stop_on_signals(settings.drain_s)
        from ingest.cli.consolidate_follow import Following  # deferred: logs and metrics take 0.1 s to import

        Following(settings, poll_s=poll, patience_s=patience, rebuild=rebuild, json=json).run(stop)
        if stop.is_interrupt:
            end_now(EXIT_INTERRUPTED)
        return
    with open_consolidator(settings) as consolidator:
        consolidated = consolidator.once(check=check, rebuild=rebuild)
        say_consolidated(consolidated, consolidator, json=json)
    if consolidated.damaged:
        raise typer.Exit(EXIT_DAMAGE)
