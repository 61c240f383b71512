"""`dump-ingest sketch`: add histograms and marginals to steps that were committed without."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from ingest.cli.exits import EXIT_DAMAGE
from ingest.cli.options import (
    ConfigOption,
    Flags,
    JsonOption,
    RanksOption,
    StepOption,
    StoreArgument,
    load_settings_with_store,
    takes_settings,
)
from ingest.cli.printing import is_terminal, print_json, say
from ingest.reader.text import counted

if TYPE_CHECKING:
    from workers.tasks.sketch import Sketched


@takes_settings(
    "scheduler",
    "workers",
)
def command(
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
    from ingest.wiring.sketching import sketch  # deferred: dask and numba take 1 s to import

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
