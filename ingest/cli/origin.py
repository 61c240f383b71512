"""`dump-ingest origin`: the operator that went wrong first, over all ranks and steps."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

import ingest
from ingest.cli.exits import exit_if_left_out_damaged
from ingest.cli.opening import open_store, page_url
from ingest.cli.options import (
    ConfigOption,
    JsonOption,
    PartialOption,
    RanksOption,
    StepOption,
    StoreArgument,
)
from ingest.cli.printing import print_json, print_line, print_table, print_wrapped, say, say_left_out
from ingest.reporting.page_link import place_link
from workers.errors import UsageError


def command(
    store: StoreArgument = None,
    rank: RanksOption = None,
    step: StepOption = None,
    cause: Annotated[
        str,
        typer.Option(
            metavar="CAUSE",
            help="What to look for: nan, inf, overflow, or auto: NaN or Inf, else an overflow.",
        ),
    ] = "auto",
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            "-w",
            metavar="CONDITION",
            help='Look for tensors that fulfil this condition instead, such as "max > 6e4".',
        ),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Print the whole spread within its step instead: text, or dot for Graphviz.",
            show_default=False,
        ),
    ] = None,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Name the first operator that produced NaN or Inf from clean inputs, and how it spread.

    [bold]dump-ingest origin run.zarr[/]
    [bold]dump-ingest origin run.zarr --where "abs(max) > 6e4"[/]   the first such output
    """
    if graph not in (None, "text", "dot"):
        raise UsageError(
            f"--graph {graph}: there is no such format", hint="Formats: text, dot; or --json with either."
        )
    opened = open_store(store, config)
    answer = ingest.origin(opened, rank, step, cause=cause, where=where, include_partial=include_partial)
    page = _page(answer, opened.url, config)
    if json:
        further = {"spread_graph": answer.spread.graph.to_dict()} if graph else {}
        print_json(answer.to_dict() | further | ({"page": page} if page else {}))
    else:
        _print_answer(answer, graph)
    say_left_out(answer.left_out)
    if not json and graph is None:
        _say_next(answer, store or opened.url)
        if page:
            say(f"page: {page}")
    exit_if_left_out_damaged(answer.left_out)


def _print_answer(answer: ingest.OriginAnswer, graph: str | None) -> None:
    """Print the answer, or the whole spread in one of its formats."""
    if graph is not None:
        spread = answer.spread.graph
        for line in spread.to_dot() if graph == "dot" else spread.to_text():
            print_line(line)
        if not spread.nodes:
            say("\n".join([*answer.headline(), *(["How it spread is not recorded."] * answer.found)]))
        return
    for line in answer.headline():
        print_wrapped(line)
    if rows := answer.tensor_rows():
        print_line("")
        print_table(
            answer.tensor_columns,
            rows,
            right=answer.tensor_columns[3:],
            spare=("std", "mean", "dtype", "shape", "-Inf", "+Inf"),
        )
    for line in answer.details():
        print_wrapped(line)


def _page(answer: ingest.OriginAnswer, store: str, config: Path | None) -> str:
    """Return where the answer is on the page; "" if nothing was found, or the settings name no page."""
    base = page_url(config)
    if not answer.found or not base or answer.rank is None or answer.step is None:
        return ""
    return place_link(base, store, answer.rank, answer.step)


def _say_next(answer: ingest.OriginAnswer, url: str) -> None:
    """Print the commands that show the values of a clean input and a bad output, if an origin is known."""
    if not answer.found:
        return
    bad_outputs = [tensor for tensor in answer.outputs if tensor.is_bad]
    if answer.came_in is not None:
        shown = [tensor for tensor in (*answer.inputs, *bad_outputs) if tensor.is_bad][:1]
    else:
        shown = [*answer.inputs[:1], *bad_outputs[:1]]
    for tensor in shown:
        # A name may contain glob characters; `show` prefers an exact match.
        say(
            f"values: dump-ingest show {shlex.quote(url)} {shlex.quote(tensor.name)} "
            f"--rank {answer.rank} --step {answer.step}"
        )
