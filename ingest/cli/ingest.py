"""`dump-ingest ingest`: a dump into a store, once."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ingest.cli.exits import run_beside, stop_on_signals
from ingest.cli.options import (
    ConfigOption,
    Flags,
    JsonOption,
    StoreOption,
    load_settings_with_store,
    refuse_idle_flags,
    takes_settings,
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
    "recheck",
    "rank_map",
    "layout",
    "keep_device_layout",
    "pool",
    "after_commit",
    "keep_last",
    "keep_anomalous",
)
def command(
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
    from ingest.cli.ingest_progress import IngestProgress
    from ingest.cli.ingest_report import exit_as, print_report, say_missing
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
    # Workers first: they are copies of this process, which must not have another thread.
    with start_workers(settings) as own_workers, IngestProgress.on_stderr() as progress:
        work = partial(ingest_with, own_workers, dump, settings, stop, [progress.observe], dry_run=dry_run)
        report = run_beside(work)
    print_report(report, settings, time.monotonic() - started, dry_run=dry_run, json=json)
    if not stop.is_set():
        say_missing(report, settings)
    exit_as(report, interrupted=stop.is_set())
