"""What `gc` does: makes a plan, prints or writes it, and carries one out; encodes old steps again.

`gc --apply` logs a line for each removal, because what is gone cannot be looked up any more.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import structlog
import typer
from msgspec import structs

from ingest.cli.exits import EXIT_INTERRUPTED, EXIT_PARTLY, stop_on_signals
from ingest.cli.printing import print_json, print_table, say, status, step_text, write_file
from ingest.reader.catalog import Catalog, open_catalog
from ingest.reader.text import counted, plain
from ingest.reporting.log_output import configure
from ingest.settings import Settings
from ingest.store_gc import plan_gc
from ingest.store_gc.execute import Execution, GcDone, GcReport, plan_recompress, recompress_store, recorded
from ingest.store_gc.plan import GcAction, GcPlan, GcPolicy, parse_duration, shortly
from ingest.units import human_bytes
from workers.errors import UsageError


def print_plan_of(settings: Settings, policy: GcPolicy, *, plan_file: Path | None, json: bool) -> None:
    """Make a plan, print it, and write it to a file if one is named. Nothing in the store changes."""
    plan = _make_plan(_open(settings), policy)
    if plan_file is not None:
        write_file(plan_file, plan.to_json())
    if json:
        print_json(plan.to_dict())
        return
    if plan.actions:
        groups: dict[tuple[str, str], list[GcAction]] = {}
        for action in plan.actions:
            groups.setdefault((action.what, action.why), []).append(action)
        rows = [(_REMOVES[what], *_cells(actions), why) for (what, why), actions in groups.items()]
        rows.append(("all", *_cells(plan.actions), f"of {human_bytes(plan.store_bytes)}"))
        print_table(("what", *_COLUMNS, "why"), rows, right=_NUMBERS)
    else:
        say(f"Nothing is to be removed. The store has {human_bytes(plan.store_bytes)}.")
    _say_notes(plan)
    if plan_file is not None:
        command = shlex.join(["dump-ingest", "gc", plan.store, "--plan", str(plan_file), "--apply"])
        say(f"Nothing was changed. Carry it out: {command}")
    elif plan.actions:
        say("Nothing was changed. Add --apply to carry this out.")


def carry_out(settings: Settings, policy: GcPolicy, *, plan_file: Path | None, json: bool) -> None:
    """Carry out the plan in a file, or else a plan for the policy, and print what was removed.

    Raises:
        UsageError: the file cannot be read, or the policy is not the default although a file is named.
        Exit: the command was interrupted, or something was left alone.
    """
    if plan_file is not None and policy != GcPolicy():
        raise UsageError(
            "--apply with --plan carries out the plan in the file, which has its own policy",
            hint="Leave out the other options, or make a new plan without --apply.",
        )
    catalog = _open(settings)
    with recorded(catalog.objects):
        plan = _make_plan(catalog, policy) if plan_file is None else _read_plan(plan_file)
        stop = stop_on_signals()
        execution = Execution(catalog.objects, plan)
        if not sys.stderr.isatty():
            configure(settings.log_level, settings.log_format)
            execution.observe = _log
        with status("removing"):
            report = execution.run(stop)
    removed = [done.action for done in report.done if not done.left]
    if json:
        print_json(
            {
                "store": plan.store,
                "objects": report.objects,
                "nbytes": report.nbytes,
                "stopped": report.stopped,
                "notes": list(plan.notes),
                "removed": [structs.asdict(action) for action in removed],
                "left": [{**structs.asdict(done.action), "left": done.left} for done in report.left],
                "broken": plain(report.broken),
            }
        )
    else:
        of_kinds = {what: [action for action in removed if action.what == what] for what in _REMOVES}
        if rows := [(_REMOVES[what], *_cells(actions)) for what, actions in of_kinds.items() if actions]:
            print_table(("removed", *_COLUMNS), rows, right=_NUMBERS)
        say(f"{counted(report.objects, 'object')}, {human_bytes(report.nbytes)} removed")
        _say_notes(plan)
    _say_what_stays(report)
    if report.stopped:
        say("Interrupted. What was removed stays removed; run the same command again for the rest.")
        raise typer.Exit(EXIT_INTERRUPTED)
    if report.left or report.broken:
        raise typer.Exit(EXIT_PARTLY)


def _open(settings: Settings) -> Catalog:
    # `ingest.open_store` would import all of Dask, too: 1.4 s instead of 0.5 s.
    return open_catalog(settings.store or "", **settings.store_arguments)


def _make_plan(catalog: Catalog, policy: GcPolicy) -> GcPlan:
    with status("listing the store"):
        return plan_gc(catalog, policy)


def _read_plan(path: Path) -> GcPlan:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"{path}: {exc}", hint="Write a plan first: dump-ingest gc STORE ... --plan FILE"
        ) from exc
    return GcPlan.from_json(text, str(path))


#: Kinds of actions, and what they remove.
_REMOVES = {
    "step": "steps",
    "tensors": "tensors of steps",
    "remains": "remains",
    "pool": "unused shared arrays",
    "temporary": "temporary files",
    "upload": "incomplete uploads",
    "announcement": "unfinished changes",
}
_COLUMNS = ("ranks", "steps", "count", "objects", "bytes")
_NUMBERS = ("count", "objects", "bytes")
#: How many things that were left alone are named; --json names all.
_MAX_LEFT = 20


def _cells(actions: Sequence[GcAction]) -> tuple[str, ...]:
    return (
        _ranges({action.rank for action in actions if action.rank is not None}),
        _ranges({action.step for action in actions if action.rank is not None}),
        str(len(actions)),
        str(sum(action.objects for action in actions)),
        human_bytes(sum(action.nbytes for action in actions)),
    )


def _ranges(numbers: Collection[int | None]) -> str:
    known = {number for number in numbers if number is not None}
    return ", ".join([*["run"] * (None in numbers), *([shortly(known)] if known else [])]) or "-"


def _say_notes(plan: GcPlan) -> None:
    if not plan.policy.is_choice and not plan.policy.reasons:
        say(
            "all steps stay, because no option says which are to go: --older-than, --keep-last, --max-size, "
            "--tensors-around-anomalies, or --rank and --step",
            label="note",
        )
    for note in plan.notes:
        say(note, label="note")


def _say_what_stays(report: GcReport) -> None:
    for done in report.left[:_MAX_LEFT]:
        action = done.action
        step = f"rank {action.rank} step {step_text(action.step)}"
        say(f"{action.path if action.rank is None else step}: {done.left}", label="left alone")
    if len(report.left) > _MAX_LEFT:
        say(f"{len(report.left) - _MAX_LEFT} more; --json names them", label="left alone")
    for key in report.broken:
        say(
            f"{key} was committed from remains while they were being removed: delete its commit, "
            f"{key.path}/zarr.json, and ingest it again",
            label="damaged",
            style="bold red",
        )


def _log(done: object) -> None:
    if not isinstance(done, GcDone):
        return
    action = done.action
    log = structlog.get_logger("dump_ingest").bind(
        what=action.what,
        rank=action.rank,
        step=action.step,
        generation=action.generation,
        path=action.path or None,
        why=action.why,
    )
    if done.left:
        log.warning("gc_left_alone", reason=done.left)
    else:
        log.info("gc_removed", objects=done.objects, nbytes=done.nbytes)


def recompress(
    settings: Settings,
    age: str,
    *,
    ranks: Sequence[int] | None,
    steps: Sequence[int] | None,
    apply: bool,
    json: bool,
) -> None:
    """Encode the tensors of old steps again; without `apply`, only say of which.

    Raises:
        UsageError: the age is not valid, or the store has no such rank or step.
        Exit: the command was interrupted, or a step is damaged.
    """
    older_than_s = parse_duration(age)
    catalog = _open(settings)
    with status("reading commits"):
        plan = plan_recompress(catalog, older_than_s=older_than_s, ranks=ranks or None, steps=steps or None)
    if not apply:
        unchanged = "\nNothing was changed. Add --apply to carry this out." if plan.keys else ""
        count, nbytes = counted(len(plan.keys), "step"), human_bytes(plan.nbytes)
        if json:
            print_json({"steps": plain(plan.keys), "nbytes": plan.nbytes})
        else:
            say(f"{count} to encode again, with {nbytes} of tensors.{unchanged}")
        return
    stop = stop_on_signals()
    with status("encoding") as shown:
        report = recompress_store(
            catalog, plan, stop=stop, progress=lambda done: shown.update(f"encoding: {done.key} done")
        )
    if json:
        print_json(report.to_dict())
    else:
        say(f"{counted(report.steps, 'step')} encoded again; {human_bytes(report.saved_nbytes)} saved")
        if report.steps:
            say("After the grace period, the next gc deletes the previous generations.")
    for step in report.done:
        if step.left:
            say(f"{step.key}: {step.left}", label="left alone")
    if report.stopped:
        raise typer.Exit(EXIT_INTERRUPTED)
    if any(step.is_damaged for step in report.done):
        raise typer.Exit(EXIT_PARTLY)
