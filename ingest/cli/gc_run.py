"""What `gc` does: makes a plan, prints or writes it, and carries one out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from ingest.cli import gc_report
from ingest.cli.consoles import err
from ingest.cli.exits import EXIT_INTERRUPTED, EXIT_PARTLY, stop_on_signals
from ingest.cli.printing import print_json, say, write_file
from ingest.reader.catalog import Catalog, open_catalog
from ingest.settings import Settings
from ingest.store_gc import plan_gc
from ingest.store_gc.execute import Execution
from ingest.store_gc.last_run import recorded
from ingest.store_gc.plan import GcPlan, GcPolicy, parse_duration
from ingest.units import parse_size
from workers.errors import UsageError


def policy_of(
    *,
    older_than: str | None,
    keep_last: int | None,
    max_size: str | None,
    tensors_around_anomalies: int | None,
    keep_anomalous: bool,
    grace: str,
    ranks: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> GcPolicy:
    """Return the policy that the options of the command describe.

    Raises:
        UsageError: an age or a size is not valid, or a number is out of range.
    """
    return GcPolicy(
        older_than_s=None if older_than is None else parse_duration(older_than),
        keep_last=keep_last,
        max_bytes=None if max_size is None else _max_bytes(max_size),
        tensors_around_anomalies=tensors_around_anomalies,
        keep_anomalous=keep_anomalous,
        grace_s=parse_duration(grace),
        ranks=tuple(ranks) if ranks else None,
        steps=tuple(steps) if steps else None,
    )


def _max_bytes(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as exc:
        raise UsageError(f"--max-size: {exc}", hint="Write a number and a unit: 500GiB, 10TiB.") from None


def print_plan_of(settings: Settings, policy: GcPolicy, *, plan_file: Path | None, json: bool) -> None:
    """Make a plan, print it, and write it to a file if one is named. Nothing in the store changes."""
    plan = _make_plan(_open(settings), policy)
    if plan_file is not None:
        write_file(plan_file, plan.to_json())
    if json:
        print_json(plan.to_dict())
        return
    gc_report.print_plan(plan)
    gc_report.say_notes(plan)
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
            from ingest.cli.gc_log import log_removals  # deferred: the log takes 0.1 s to import

            log_removals(execution, settings)
        with err.status("removing"):
            report = execution.run(stop)
    if json:
        print_json(gc_report.json_row(plan, report))
    else:
        gc_report.print_removed(report)
        gc_report.say_notes(plan)
    gc_report.say_what_stays(report)
    if report.stopped:
        say("Interrupted. What was removed stays removed; run the same command again for the rest.")
        raise typer.Exit(EXIT_INTERRUPTED)
    if report.left or report.broken:
        raise typer.Exit(EXIT_PARTLY)


def _open(settings: Settings) -> Catalog:
    # `ingest.open_store` would import all of Dask, too: 1.4 s instead of 0.5 s.
    return open_catalog(settings.store or "", **settings.store_arguments)


def _make_plan(catalog: Catalog, policy: GcPolicy) -> GcPlan:
    with err.status("listing the store"):
        return plan_gc(catalog, policy)


def _read_plan(path: Path) -> GcPlan:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(
            f"{path}: {exc}", hint="Write a plan first: dump-ingest gc STORE ... --plan FILE"
        ) from exc
    return GcPlan.from_json(text, str(path))
