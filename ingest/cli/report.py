"""`dump-ingest report`: the incidents of a run as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ingest
from ingest.cli.options import ConfigOption, StoreArgument, open_store
from ingest.cli.printing import write_and_say


def command(
    store: StoreArgument = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the page to this file.")] = Path(
        "report.html"
    ),
    incident: Annotated[
        str,
        typer.Option(
            metavar="ID", help="Only this incident; `anomalies` prints the ids.", show_default=False
        ),
    ] = "",
    config: ConfigOption = None,
) -> None:
    """Write the incidents of a run as one file to attach to a ticket.

    It has the cards and pictures of `serve`, needs no network, and runs no script.

    [bold]dump-ingest report run.zarr --out report.html[/]
    """
    write_and_say(out, ingest.report(open_store(store, config), incident=incident))
