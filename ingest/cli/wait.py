"""`dump-ingest wait`: until something has happened in a store."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ingest.cli.options import WHOLE, ConfigOption, JsonOption, StoreArgument, load_settings, open_store
from ingest.cli.printing import print_json, print_line
from workers.errors import UsageError

#: The exit code if the time was over first: that of timeout(1).
EXIT_TIMEOUT = 124


def command(
    store: StoreArgument = None,
    number: Annotated[
        str | None, typer.Argument(metavar="N", help="With --until step: its number.", show_default=False)
    ] = None,
    until: Annotated[
        str,
        typer.Option(
            metavar="incident|step N|idle",
            help="An incident whose step every rank has committed; step N on every rank; or idle: "
            "nothing was committed for --idle seconds.",
        ),
    ] = "incident",
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Give up after this time, with exit code 124."),
    ] = None,
    severity: Annotated[
        str, typer.Option(metavar="NAME", help="The lowest severity that counts: info, warning or critical.")
    ] = "critical",
    new: Annotated[
        bool,
        typer.Option(
            "--new", help="Only incidents of steps that are committed from now on: the job was resumed."
        ),
    ] = False,
    idle: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="For idle: how long.")] = 60.0,
    poll: Annotated[float, typer.Option(metavar="SECONDS", min=0.05, help="Look this often.")] = 5.0,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Wait until an incident is found, a step is committed, or nothing is committed any more.

    Exits with 0 if it came, and with 124 if --timeout was over first. The store need not exist yet.

    [bold]dump-ingest wait run.zarr --until incident && scancel "$JOB"[/]
    [bold]dump-ingest wait run.zarr --until step 8 --timeout 600[/]
    """
    from ingest.findings.waiting import wait_with  # deferred: numba, zarr: 0.5 s

    if store is None and load_settings(config).settings.store is None:
        raise UsageError("no store is named", hint="Name it as STORE, or with DUMP_INGEST_STORE.")
    if number is not None and WHOLE.fullmatch(number) is None:
        raise UsageError(f"{number!r:.80} is not a step", hint="dump-ingest wait STORE --until step 8")
    waited = wait_with(
        lambda: open_store(store, config),
        until,
        step=None if number is None else int(number),
        timeout_s=timeout,
        severity=severity,
        since=time.time() if new else 0.0,
        idle_s=idle,
        poll_s=poll,
    )
    if json:
        incident = None if waited.incident is None else waited.incident.to_dict()
        print_json({"came": waited.came, "reason": waited.reason, "incident": incident})
    else:
        print_line(waited.reason)
    if not waited.came:
        raise typer.Exit(EXIT_TIMEOUT)
