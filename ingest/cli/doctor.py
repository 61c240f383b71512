"""`dump-ingest doctor`: whether it would work here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ingest.cli.common import EXIT_FAILED, ConfigOption, JsonOption, StoreOption, print_json, print_table
from ingest.cli.ingest import SchedulerOption

NAME = "doctor"


def command(
    dump: Annotated[
        Path | None,
        typer.Argument(help="A dump directory to look at.", show_default=False, readable=False),
    ] = None,
    store: StoreOption = None,
    scheduler: SchedulerOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Check settings, dump, store and scheduler, and say what to do about what is wrong.

    Writes one small object to the store and removes it. Exits with 1 when a check fails.
    """
    from ingest.doctor.checks import run_checks
    from ingest.settings import load

    results = run_checks(load(config, store=store, scheduler=scheduler), dump)
    if json:
        print_json([{"check": r.check, "ok": r.ok, "detail": r.detail, "hint": r.hint} for r in results])
    else:
        print_table(
            ("", "check", "detail"),
            (
                ("ok" if r.ok else "FAIL", r.check, r.detail + (f"  ({r.hint})" if r.hint else ""))
                for r in results
            ),
        )
    if not all(result.ok for result in results):
        raise typer.Exit(EXIT_FAILED)
