"""`dump-ingest repair`: what is damaged in a store, made again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ingest.cli.consoles import err
from ingest.cli.exits import EXIT_DAMAGE
from ingest.cli.options import (
    ConfigOption,
    Flags,
    JsonOption,
    RankOption,
    StepOption,
    StoreArgument,
    load_settings_with_store,
    takes_settings,
)
from ingest.cli.printing import print_json, print_line, say
from ingest.reader.text import counted

if TYPE_CHECKING:
    from ingest.repairing.work import RepairReport, StepRepair

#: Lines of one kind that are printed for a step; --json has all.
_MAX_LINES = 20


@takes_settings(
    "rank_map",
    "layout",
)
def command(
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
    from workers.rules.load import load_rules

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
