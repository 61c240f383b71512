"""`dump-ingest check`: the configuration of a dump, before the job runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import ingest
from ingest.cli.exits import EXIT_FAILED
from ingest.cli.options import ConfigOption, JsonOption, StoreOption, open_store
from ingest.cli.printing import print_json, print_line, say
from ingest.reader.choice import format_ranges
from ingest.reader.text import counted


def command(
    configuration: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="The configuration of a dump system.", readable=False),
    ],
    version: Annotated[
        str, typer.Option("--version", metavar="VERSION", help="The version of MindSpore, such as 2.10.0.")
    ] = "",
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Where the job runs: CPU, GPU or Ascend.")
    ] = "",
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Check the configuration of a dump: what it will dump, what is ignored, what contradicts itself.

    With a store of the same job, also how much it will dump, and whether its disk has room for that.
    Exits with 1 if the dump system would refuse it.

    [bold]dump-ingest check data_dump.json --version 2.10.0 --device Ascend[/]
    [bold]dump-ingest check data_dump.json --store run.zarr[/]   how much it will dump
    """
    checked = ingest.check_dump_config(configuration, version=version, device=device)
    cost = None
    if store is not None and checked.asked is not None:
        cost = ingest.dump_cost(open_store(store, config), checked)
    if json:
        print_json(checked.to_dict() | {"cost": None if cost is None else cost.to_dict()})
    else:
        for line in (*_lines(checked), *str(cost or "").splitlines()):
            print_line(line)
        if not checked.findings:
            say("nothing is wrong with it")
    if checked.refused:
        raise typer.Exit(EXIT_FAILED)


def _lines(checked: ingest.CheckedConfig) -> Iterator[str]:
    yield f"{checked.name}: {checked.system}"
    if (asked := checked.asked) is not None:
        operators = "all" if asked.operators is None else counted(len(asked.operators), "pattern")
        steps, ranks = (
            "all" if numbers is None else format_ranges(sorted(numbers)) or "none"
            for numbers in (asked.steps, asked.devices)
        )
        yield f"  asks for {asked.saved} of {asked.io.value}; operators: {operators}; steps: {steps}"
        yield f"  ranks or devices: {ranks}; to {asked.directory or 'no directory'}"
        if asked.sample:
            yield f"  a sample: the first and the last {asked.sample} elements of each tensor"
        if asked.only:
            yield f"  only {asked.only}"
    for finding in (*checked.refused, *checked.warnings):
        yield f"{finding.severity.value}: {finding}"
        yield f"  {finding.source}"
