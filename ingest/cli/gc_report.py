"""What `gc` prints: a plan, what was removed, and what was left alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from msgspec import structs

from ingest.cli.printing import print_table, say, step_text
from ingest.reader.text import counted
from ingest.store_gc.execute import GcReport
from ingest.store_gc.plan import GcAction, GcPlan, shortly
from ingest.units import human_bytes

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


def print_plan(plan: GcPlan) -> None:
    """Print what a plan removes, a row for each kind and reason."""
    if not plan.actions:
        say(f"Nothing is to be removed. The store has {human_bytes(plan.store_bytes)}.")
        return
    groups: dict[tuple[str, str], list[GcAction]] = {}
    for action in plan.actions:
        groups.setdefault((action.what, action.why), []).append(action)
    rows = [(_REMOVES[what], *_cells(actions), why) for (what, why), actions in groups.items()]
    rows.append(("all", *_cells(plan.actions), f"of {human_bytes(plan.store_bytes)}"))
    print_table(("what", *_COLUMNS, "why"), rows, right=_NUMBERS)


def print_removed(report: GcReport) -> None:
    """Print what was removed, a row for each kind."""
    removed = [done.action for done in report.done if not done.left]
    rows = []
    for what, noun in _REMOVES.items():
        actions = [action for action in removed if action.what == what]
        if actions:
            rows.append((noun, *_cells(actions)))
    if rows:
        print_table(("removed", *_COLUMNS), rows, right=_NUMBERS)
    say(f"{counted(report.objects, 'object')}, {human_bytes(report.nbytes)} removed")


def _cells(actions: Iterable[GcAction]) -> tuple[str, ...]:
    """Return ranks, steps, number, objects and bytes of some actions."""
    chosen = list(actions)
    of_ranks = [action for action in chosen if action.rank is not None]
    return (
        _ranges({action.rank for action in of_ranks}),
        _ranges({action.step for action in of_ranks}),
        str(len(chosen)),
        str(sum(action.objects for action in chosen)),
        human_bytes(sum(action.nbytes for action in chosen)),
    )


def _ranges(numbers: Collection[int | None]) -> str:
    """Return ranks or steps as ranges, after `run` for None; `-` if there are none."""
    known = {number for number in numbers if number is not None}
    parts = [*(["run"] if None in numbers else []), *([shortly(known)] if known else [])]
    return ", ".join(parts) or "-"


def say_notes(plan: GcPlan) -> None:
    """Print to stderr what stays for another reason than the policy, and whether it lets all steps stay."""
    if not plan.policy.removes_steps:
        say(
            "all steps stay, because no option says which are to go: --older-than, --keep-last, --max-size, "
            "--tensors-around-anomalies, or --rank and --step",
            label="note",
        )
    for note in plan.notes:
        say(note, label="note")


def say_what_stays(report: GcReport) -> None:
    """Print to stderr what was left alone and why, and steps that a commit at the same time has damaged."""
    for done in report.left[:_MAX_LEFT]:
        say(f"{_subject(done.action)}: {done.left}", label="left alone")
    if len(report.left) > _MAX_LEFT:
        say(f"{len(report.left) - _MAX_LEFT} more; --json names them", label="left alone")
    for key in report.broken:
        say(
            f"{key} was committed from remains while they were being removed: delete its commit, "
            f"{key.path}/zarr.json, and ingest it again",
            label="damaged",
            style="bold red",
        )


def _subject(action: GcAction) -> str:
    return action.path if action.rank is None else f"rank {action.rank} step {step_text(action.step)}"


def json_row(plan: GcPlan, report: GcReport) -> dict[str, Any]:
    """Return the JSON of a run: what was removed, and what was left alone."""
    return {
        "store": plan.store,
        "objects": report.objects,
        "nbytes": report.nbytes,
        "stopped": report.stopped,
        "notes": list(plan.notes),
        "removed": [structs.asdict(done.action) for done in report.done if not done.left],
        "left": [{**structs.asdict(done.action), "left": done.left} for done in report.left],
        "broken": [{"rank": key.rank, "step": key.step} for key in report.broken],
    }
