"""`dump-ingest gc`: deletes in the store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ingest.cli.common import (
    EXIT_INTERRUPTED,
    EXIT_PARTLY,
    ConfigOption,
    JsonOption,
    StoreArgument,
    err,
    load_settings,
    print_json,
    print_table,
    say,
    step_name,
    stop_on_signals,
)
from ingest.units import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingest.reader.catalog import Catalog
    from ingest.settings import Settings
    from ingest.store_gc.execute import GcDone, GcReport
    from ingest.store_gc.plan import GcAction, GcPlan
    from ingest.store_gc.policy import GcPolicy
    from workers.events import Event

NAME = "gc"
_WHAT = {
    "step": "steps",
    "tensors": "tensors of steps",
    "remains": "remains",
    "temporary": "temporary files",
}
#: Lines about what was left alone; --json has them all.
_MAX_LEFT = 20


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
            help="Remove the tensors of steps farther than N dumped steps from any anomaly; keep all else.",
        ),
    ] = None,
    keep_anomalous: Annotated[
        bool, typer.Option("--keep-anomalous", help="Never remove steps with an anomaly on any rank.")
    ] = False,
    grace: Annotated[
        str, typer.Option(metavar="AGE", help="How long what no commit points to stays after its last write.")
    ] = "24h",
    apply: Annotated[
        bool, typer.Option("--apply", help="Carry the plan out. Without it, nothing is changed.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the plan into this file; with --apply: carry out the plan in it."
        ),
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Remove steps, or only their tensors, by age, number, size and distance from anomalies.

    Prints what would go, and changes nothing, unless --apply is given. What crashed ingests left behind, and
    previous generations of steps, go after the grace period. Safe to kill, and beside everything that runs.

    Exits with 4 when something in the plan was left alone.

    [bold]dump-ingest gc run.zarr --older-than 30d --keep-anomalous[/]             what would go
    [bold]dump-ingest gc run.zarr --older-than 30d --keep-anomalous --apply[/]     let it go
    [bold]dump-ingest gc run.zarr --tensors-around-anomalies 2 --plan plan.json[/] to be looked at first;
    [bold]dump-ingest gc run.zarr --plan plan.json --apply[/]                      exactly that
    """
    from ingest.reader.catalog import open_catalog
    from ingest.store_gc.policy import DAY_S, GcPolicy, parse_duration
    from workers.errors import UsageError

    settings = load_settings(config, store=store).settings
    policy = GcPolicy(
        None if older_than is None else parse_duration(older_than),
        keep_last,
        None if max_size is None else _size(max_size),
        tensors_around_anomalies,
        keep_anomalous,
        parse_duration(grace),
    )
    from_file = apply and plan is not None
    if from_file and policy != GcPolicy(grace_s=DAY_S):
        raise UsageError(
            "--apply with --plan carries out what is in the file, which knows its own policy",
            hint="Leave the other options out, or make the plan again without --apply.",
        )
    opened = open_catalog(settings.store or "", **settings.store_options)
    made = _read(plan) if from_file and plan is not None else _made(opened, policy)
    if apply:
        _apply(opened, made, settings, json=json)
        return
    if plan is not None:
        _write(plan, made)
    if json:
        print_json(made.to_dict())
    else:
        _print_plan(made)
        _say_notes(made)
        if made.actions and plan is None:
            err.print("Nothing was changed. Add --apply to carry this out.")
        elif plan is not None:
            say(f"Nothing was changed. Carry it out: dump-ingest gc {made.store} --plan {plan} --apply")


def _size(text: str) -> int:
    from ingest.units import parse_size
    from workers.errors import UsageError

    try:
        return parse_size(text)
    except ValueError as exc:
        raise UsageError(f"--max-size: {exc}", hint="Write a number and a unit: 500GiB, 10TiB.") from None


def _made(opened: Catalog, policy: GcPolicy) -> GcPlan:
    from ingest.store_gc import plan_gc

    with err.status("listing the store"):
        return plan_gc(opened, policy)


def _read(path: Path) -> GcPlan:
    from ingest.store_gc.plan import GcPlan
    from workers.errors import UsageError

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"{path}: {exc}", hint="Write a plan first: dump-ingest gc STORE ... --plan FILE"
        ) from exc
    return GcPlan.from_json(text, str(path))


def _write(path: Path, plan: GcPlan) -> None:
    from workers.errors import UsageError

    try:
        path.write_text(plan.to_json())
    except OSError as exc:
        raise UsageError(f"cannot write {path}: {exc.strerror}", hint="Name a file in a directory.") from exc


def _print_plan(plan: GcPlan) -> None:
    if not plan.actions:
        err.print(f"Nothing is to be removed. The store has {human_bytes(plan.store_bytes)}.")
        return
    groups: dict[tuple[str, str], list[GcAction]] = {}
    for one in plan.actions:
        groups.setdefault((one.what, one.why), []).append(one)
    rows = [(_WHAT[what], *_cells(members), why) for (what, why), members in groups.items()]
    rows.append(("all", *_cells(plan.actions), f"of {human_bytes(plan.store_bytes)}"))
    print_table(("what", "ranks", "steps", "count", "objects", "bytes", "why"), rows, right=_NUMBERS)


_NUMBERS = ("count", "objects", "bytes")


def _cells(actions: Iterable[GcAction]) -> tuple[str, ...]:
    from ingest.store_gc.plan import shortly

    members = list(actions)
    ranks = {one.rank for one in members if one.rank is not None}
    steps = {one.step for one in members if one.step is not None}
    run = ["run"] if any(one.rank is not None and one.step is None for one in members) else []
    return (
        shortly(ranks) if ranks else "-",
        ", ".join([*run, *([shortly(steps)] if steps else [])]) or "-",
        str(len(members)),
        str(sum(one.objects for one in members)),
        human_bytes(sum(one.nbytes for one in members)),
    )


def _say_notes(plan: GcPlan) -> None:
    for note in plan.notes:
        say(note, before="[yellow]note:[/] ")


def _apply(opened: Catalog, plan: GcPlan, settings: Settings, *, json: bool) -> None:
    from ingest.reporting.logs import configure
    from ingest.store_gc.execute import Execution

    stop = stop_on_signals()
    observe = None
    if not sys.stderr.isatty():
        # A line for each thing: what is gone cannot be looked up any more.
        configure(settings.log_level, settings.log_format)
        observe = _log
    execution = Execution(opened.objects, plan)
    if observe is not None:
        execution.observe = observe
    with err.status("removing"):
        report = execution.run(stop)
    if json:
        print_json(_row(plan, report))
    else:
        gone = [one.action for one in report.done if not one.left]
        if gone:
            rows = [
                (_WHAT[what], *_cells(one for one in gone if one.what == what))
                for what in _WHAT
                if any(one.what == what for one in gone)
            ]
            print_table(("removed", "ranks", "steps", "count", "objects", "bytes"), rows, right=_NUMBERS)
        err.print(f"{report.objects} objects, {human_bytes(report.nbytes)} removed")
        _say_notes(plan)
    _complain(report)
    if report.stopped:
        err.print("Interrupted. What is gone stays gone; run the same command again for the rest.")
        raise typer.Exit(EXIT_INTERRUPTED)
    if report.left or report.broken:
        raise typer.Exit(EXIT_PARTLY)


def _complain(report: GcReport) -> None:
    for one in report.left[:_MAX_LEFT]:
        say(f"{_name(one)}: {one.left}", before="[yellow]left alone:[/] ")
    if len(report.left) > _MAX_LEFT:
        say(f"{len(report.left) - _MAX_LEFT} more; --json names them", before="[yellow]left alone:[/] ")
    for key in report.broken:
        say(
            f"{key} was committed from remains while these were removed: remove its commit, "
            f"{key.path}/zarr.json, and ingest it again",
            before="[bold red]damaged:[/] ",
        )


def _name(done: GcDone) -> str:
    one = done.action
    if one.rank is None:
        return one.path
    return f"rank {one.rank} step {step_name(one.step)}"


def _row(plan: GcPlan, report: GcReport) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "store": plan.store,
        "objects": report.objects,
        "nbytes": report.nbytes,
        "stopped": report.stopped,
        "notes": list(plan.notes),
        "removed": [asdict(one.action) for one in report.done if not one.left],
        "left": [{**asdict(one.action), "left": one.left} for one in report.left],
        "broken": [{"rank": key.rank, "step": key.step} for key in report.broken],
    }


def _log(done: Event) -> None:
    import structlog

    from ingest.store_gc.execute import GcDone

    if not isinstance(done, GcDone):
        return
    one = done.action
    log = structlog.get_logger("dump_ingest")
    facts = {
        "what": one.what,
        "rank": one.rank,
        "step": one.step,
        "generation": one.generation,
        "path": one.path or None,
        "why": one.why,
    }
    if done.left:
        log.warning("gc_left_alone", **facts, reason=done.left)
    else:
        log.info("gc_removed", **facts, objects=done.objects, nbytes=done.nbytes)
