"""`dump-ingest next`: the configuration of the dump that answers what this one cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ingest
from ingest.cli.options import ConfigOption, JsonOption, RanksOption, StepOption, StoreArgument, open_store
from ingest.cli.printing import print_json, say, write_file
from ingest.units import parse_size
from workers.errors import UsageError


def command(
    store: StoreArgument = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="With --for tensor: names or globs.", show_default=False),
    ] = None,
    purpose: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PURPOSE",
            help="What it should answer: origin (of NaN, Inf, overflows), divergence, or tensor NAME...",
        ),
    ] = "origin",
    system: Annotated[
        str | None,
        typer.Option(
            metavar="SYSTEM",
            help="One of mindspore, msprobe, acl, torchair, tensorflow, sglang, te. Default: as the dump.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Dump at most this, the most telling first: 20GB.",
            show_default=False,
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(metavar="DIRECTORY", help="Where the job should dump. Default: the former, with _next."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the configuration to this file."),
    ] = None,
    rank: RanksOption = None,
    step: StepOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Write the configuration of the next, small dump: of the operators under suspicion alone.

    [bold]dump-ingest next run.zarr --out data_dump.json[/]
    [bold]dump-ingest next run.zarr 'MatMul.*' --for tensor --budget 2GB[/]
    """
    try:
        limit = None if budget is None else parse_size(budget)
    except ValueError as exc:
        raise UsageError(f"--budget {exc}", hint="Such as 20GB or 500MiB.") from exc
    opened = open_store(store, config)
    answer = ingest.next_dump(
        opened, purpose, names or (), system=system, budget=limit, directory=path, rank=rank, step=step
    )
    if out is not None:
        write_file(out, answer.config.text)
    if json:
        print_json(answer.to_dict())
        return
    if out is None:
        typer.echo(answer.config.text, nl=False)
    say(str(answer))
    say("")
    say(answer.config.use if out is None else f"Written to {out}. {answer.config.use}")
