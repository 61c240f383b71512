"""The commands that maintain a store: `verify`, `repair`, `consolidate`, `sketch` and `gc`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from ingest.cli.consoles import err
from ingest.cli.exits import EXIT_DAMAGE, EXIT_INTERRUPTED, end_now, stop_on_signals
from ingest.cli.options import (
    ConfigOption,
    Flags,
    JsonOption,
    RankOption,
    RanksOption,
    StepOption,
    StoreArgument,
    load_settings_with_store,
    open_store,
    takes_settings,
)
from ingest.cli.printing import is_terminal, print_json, print_line, print_text, say
from ingest.reader.text import counted, printable
from ingest.units import human_bytes
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.reader.catalog import Damage
    from ingest.reader.verifying import StoreDamage
    from ingest.repairing.work import RepairReport, StepRepair
    from workers.tasks.consolidate import Sketched


def verify_command(
    store: StoreArgument = None,
    rank: RanksOption = None,
    step: StepOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Read everything back, recompute every digest and statistic, and name what is damaged.

    Exits with 3 if anything is damaged; `dump-ingest repair` makes it again.
    """
    # deferred: numpy, numba and zarr take 0.4 s to import
    from ingest.reader.verifying import Verified, uncommitted, verify, verify_copies, verify_surroundings

    opened = open_store(store, config)
    keys, notes = None, []
    if rank or step:
        unread: list[Damage] = []
        chosen = opened.select(rank, step, damages=unread)
        keys = [*(step.key for step in chosen), *(damage.key for damage in unread)]
    total = Verified()

    def keep_total(so_far: Verified) -> None:
        nonlocal total
        total = so_far

    with err.status("verifying"):
        damages: list[Damage | StoreDamage] = list(verify(opened, keys, keep_total))
        if keys is None:
            damages += verify_surroundings(opened.objects)
            damages += verify_copies(opened.objects)
            notes = uncommitted(opened.objects)
    if json:
        print_json(list(map(_json_row, damages)))
    else:
        for damage in damages:
            print_text(printable(str(damage)))
    say(
        f"{counted(total.steps, 'step')}, {counted(total.files, 'file')}, {human_bytes(total.nbytes)} read; "
        f"{len(damages)} damaged"
    )
    for key in notes:
        say(
            f"{key} has objects but no commit, for more than a day: an ingest was interrupted, or the commit "
            "was deleted. `ingest` takes the step again, `gc` removes the objects",
            label="note",
        )
    if damages:
        say(
            f"`dump-ingest repair {shlex.quote(opened.url)}` shows from what it can be restored", label="hint"
        )
        raise typer.Exit(EXIT_DAMAGE)


def _json_row(damage: Damage | StoreDamage) -> dict[str, Any]:
    return {
        "rank": damage.key.rank if damage.key else None,
        "step": damage.key.step if damage.key else None,
        "source": damage.source,
        "reason": damage.reason,
    }


#: Lines of one kind that are printed for a step; --json has all.
_MAX_LINES = 20


@takes_settings(
    "rank_map",
    "layout",
)
def repair_command(
    store: StoreArgument = None,
    dump: Annotated[
        list[Path] | None,
        typer.Option(
            "--dump",
            metavar="DIR",
            help="A dump to take lost data from, besides those that the commits name; may be repeated.",
            show_default=False,
        ),
    ] = None,
    *,
    flags: Flags,
    rank: RankOption = None,
    step: StepOption = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Commit steps again, as partial, without the tensors and files that are found nowhere.",
        ),
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Write. Without it, nothing is changed.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Make damaged or missing objects again: from the dump, or from copies in the store.

    Reads and checks everything, as `verify` does. Without --apply, it prints what it would write and where it
    would take it from.

    Exits with 0 if nothing is damaged or everything was repaired, and with 3 if damage remains.

    [bold]dump-ingest repair run.zarr[/]                            what is damaged
    [bold]dump-ingest repair run.zarr --apply[/]                    mend it
    [bold]dump-ingest repair run.zarr --dump /mnt/backup --apply[/] with a copy of the dump
    """
    # deferred: numba, numpy and zarr take 0.5 s to import
    from ingest.repairing import repair
    from ingest.wiring.stores import grid_of
    from workers.rules.schema import load_rules

    settings = load_settings_with_store(config, store=store, **flags).settings
    with err.status("checking") as status:
        report = repair(
            settings.store or "",
            dump or (),
            rank=rank,
            step=step,
            apply=apply,
            accept_loss=accept_loss,
            grid=grid_of(settings),
            rules=load_rules(settings.rules).enabled,
            host=settings.host,
            rank_map=settings.rank_map,
            layout=settings.layout,
            progress=lambda key: status.update(f"checking {key}"),
            **settings.store_arguments,
        )
    if json:
        print_json(report.to_dict())
    else:
        for outcome in report.repairs:
            _print_repair(outcome, applied=report.applied)
    _say_end(report, accept_loss=accept_loss)
    if not report.is_clean:
        raise typer.Exit(EXIT_DAMAGE)


def _print_repair(outcome: StepRepair, *, applied: bool) -> None:
    subject = "store" if outcome.key is None else str(outcome.key)
    _print_lines([f"{subject}: damaged: {damage}" for damage in outcome.damages])
    done = "repaired" if applied else "can be repaired"
    _print_lines([f"{subject}: {done}: {mended.path}, from {mended.origin}" for mended in outcome.mended])
    if outcome.generation:
        verb = "was" if applied else "would be"
        print_line(f"{subject}: {verb} committed again as generation {outcome.generation}")
    _print_lines([f"{subject}: lost: {lost.what}: {lost.reason}" for lost in outcome.lost])
    _print_lines([f"{subject}: still damaged: {reason}" for reason in outcome.remains])


def _print_lines(lines: list[str]) -> None:
    for line in lines[:_MAX_LINES]:
        print_line(line)
    if len(lines) > _MAX_LINES:
        print_line(f"  and {len(lines) - _MAX_LINES} more; --json has all")


def _say_end(report: RepairReport, *, accept_loss: bool) -> None:
    damaged = [outcome for outcome in report.repairs if outcome.key is not None]
    say(f"{counted(report.checked, 'step')} checked; {len(damaged)} damaged")
    has_lost = any(outcome.lost for outcome in report.repairs)
    if report.repairs and not report.applied:
        say("Nothing was changed. Add --apply to carry this out.")
    if has_lost and not accept_loss:
        say(
            "What is lost was found neither in a dump nor in the store. Name a copy of the dump with "
            "--dump DIR; --accept-loss keeps the rest of such steps, as partial.",
            label="note",
        )


@takes_settings(
    "scheduler",
    "workers",
    "expected_ranks",
)
def consolidate_command(
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
    from ingest.cli.consolidate_follow import say_consolidated
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


@takes_settings(
    "scheduler",
    "workers",
)
def sketch_command(
    store: StoreArgument = None,
    rank: RanksOption = None,
    step: StepOption = None,
    *,
    flags: Flags,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Add histograms and marginals to steps that were committed without, from the tensors in the store.

    [bold]precision[/], [bold]quantiles[/] and [bold]outliers[/] answer from them, also when the tensors are
    gone. You may stop this at any time, and run it again. Exits with 3 if a step is damaged.

    [bold]dump-ingest sketch run.zarr[/]
    """
    from ingest.wiring.consolidation import sketch  # deferred: dask and numba take 1 s to import

    settings = load_settings_with_store(config, store=store, **flags).settings
    report = sketch(settings.store or "", rank=rank, step=step, settings=settings, progress=_say_step)
    if json:
        print_json(report.to_dict())
    else:
        had = f"; {counted(report.had, 'step')} had them" if report.had else ""
        say(f"sketches added to {counted(len(report.added), 'step')}{had}")
    if report.added:
        view = f"dump-ingest consolidate {shlex.quote(settings.store or '')} --rebuild"
        say(f"`{view}` puts them into the consolidated view", label="hint")
    for left in report.left:
        say(f"{left.key}: {left.left}", label="left out")
    for reason in report.damaged:
        say(reason, label="damaged", style="bold red")
    if report.damaged:
        raise typer.Exit(EXIT_DAMAGE)


def _say_step(sketched: Sketched) -> None:
    if is_terminal() and not sketched.left:
        say(f"{sketched.key}: {counted(sketched.tensors, 'tensor')}")


def gc_command(
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
