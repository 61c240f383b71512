"""`dump-ingest gc`: deletes in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs

from ingest.cli.options import (
    ConfigOption,
    JsonOption,
    RankOption,
    StepOption,
    StoreArgument,
    load_settings_with_store,
)
from workers.errors import UsageError


def command(
    store: StoreArgument = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Remove steps committed longer ago than this: 12h, 30d, 8w."),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Never touch the newest N steps of a rank. Without --older-than, --max-size and "
            "--tensors-around-anomalies: remove all others.",
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Remove the oldest steps until the store fits: 500GiB, 10TiB."),
    ] = None,
    tensors_around_anomalies: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Remove the tensors of steps more than N dumped steps away from any anomaly; keep the rest.",
        ),
    ] = None,
    keep_anomalous: Annotated[
        bool, typer.Option("--keep-anomalous", help="Never remove steps with an anomaly on any rank.")
    ] = False,
    grace: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="How long objects that no commit points to stay after the last write next to them.",
        ),
    ] = "24h",
    recompress: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Remove nothing: encode tensors of steps older than this again, smaller but slower to read.",
        ),
    ] = None,
    rank: RankOption = None,
    step: StepOption = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Carry the plan out. Without it, nothing is changed.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the plan to this file; with --apply: carry out the plan in this file.",
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Remove steps, or only their tensors, by age, number, size and distance to anomalies.

    Without --apply, it prints what it would remove and changes nothing. It also removes what crashed ingests
    left behind, and previous generations of steps, after the grace period. You may kill it at any time, and
    run it next to everything else.

    With --rank or --step, it removes exactly these steps: those that went into the store by mistake.

    With --recompress, it removes nothing: old steps that are rarely read take less room afterwards. What they
    took before goes with the next gc after the grace period.

    Exits with 4 if something in the plan was left alone.

    [bold]dump-ingest gc run.zarr --older-than 30d --keep-anomalous[/]          what goes
    [bold]dump-ingest gc run.zarr --older-than 30d --keep-anomalous --apply[/]  remove it
    [bold]dump-ingest gc run.zarr --rank 3 --step 40 --step 41 --apply[/]       two steps
    [bold]dump-ingest gc run.zarr --tensors-around-anomalies 2 --plan p.json[/] to review
    [bold]dump-ingest gc run.zarr --plan p.json --apply[/]                      that plan
    [bold]dump-ingest gc run.zarr --recompress 7d --apply[/]                    smaller
    """
    from ingest.cli import gc_run  # deferred: numba, numpy and zarr take 0.5 s to import
    from ingest.store_gc.plan import GcPolicy, parse_duration  # deferred: the same
    from ingest.units import parse_size  # deferred: with them

    settings = load_settings_with_store(config, store=store).settings
    try:
        max_bytes = None if max_size is None else parse_size(max_size)
    except ValueError as exc:
        raise UsageError(f"--max-size: {exc}", hint="Write a number and a unit: 500GiB, 10TiB.") from None
    policy = GcPolicy(
        older_than_s=None if older_than is None else parse_duration(older_than),
        keep_last=keep_last,
        max_bytes=max_bytes,
        tensors_around_anomalies=tensors_around_anomalies,
        keep_anomalous=keep_anomalous,
        grace_s=parse_duration(grace),
        ranks=tuple(rank) if rank else None,
        steps=tuple(step) if step else None,
    )
    if recompress is not None:
        if plan is not None or structs.replace(policy, ranks=None, steps=None) != GcPolicy():
            raise UsageError(
                "--recompress removes nothing: options that choose what goes do not apply",
                hint="Give it with --rank, --step, --apply and --json alone.",
            )
        gc_run.recompress(settings, recompress, ranks=rank, steps=step, apply=apply, json=json)
    elif apply:
        gc_run.carry_out(settings, policy, plan_file=plan, json=json)
    else:
        gc_run.print_plan_of(settings, policy, plan_file=plan, json=json)
