"""What `gc --recompress` does: says which steps it would encode again, or does it, and what that saves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

import typer

from ingest.cli.consoles import err
from ingest.cli.exits import EXIT_INTERRUPTED, EXIT_PARTLY, stop_on_signals
from ingest.cli.printing import print_json, say
from ingest.reader.catalog import open_catalog
from ingest.reader.text import counted
from ingest.settings import Settings
from ingest.store_gc.plan import parse_duration
from ingest.store_gc.recompress import RecompressPlan, plan_recompress, recompress_store
from ingest.units import human_bytes
from workers.store.packed.recompressing import Recompressed


def run(
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
    catalog = open_catalog(settings.store or "", **settings.store_arguments)
    with err.status("reading commits"):
        plan = plan_recompress(catalog, older_than_s=older_than_s, ranks=ranks or None, steps=steps or None)
    if not apply:
        _say_plan(plan, json=json)
        return
    stop = stop_on_signals()
    with err.status("encoding") as status:

        def show(done: Recompressed) -> None:
            status.update(f"encoding: {done.key} done")

        report = recompress_store(catalog, plan, stop=stop, progress=show)
    if json:
        print_json(report.to_dict())
    else:
        say(f"{counted(report.steps, 'step')} encoded again; {human_bytes(report.saved_nbytes)} saved")
        if report.steps:
            say("After the grace period, the next gc deletes the previous generations.")
    _say_left_alone(report.done)
    if report.stopped:
        raise typer.Exit(EXIT_INTERRUPTED)
    if any(step.is_damaged for step in report.done):
        raise typer.Exit(EXIT_PARTLY)


def _say_left_alone(steps: Iterable[Recompressed]) -> None:
    for step in steps:
        if step.left:
            say(f"{step.key}: {step.left}", label="left alone")


def _say_plan(plan: RecompressPlan, *, json: bool) -> None:
    if json:
        print_json({"steps": [asdict(key) for key in plan.keys], "nbytes": plan.nbytes})
        return
    say(f"{counted(len(plan.keys), 'step')} to encode again, with {human_bytes(plan.nbytes)} of tensors.")
    if plan.keys:
        say("Nothing was changed. Add --apply to carry this out.")
