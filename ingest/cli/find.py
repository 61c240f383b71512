"""`dump-ingest find`: tensors by name, operator and statistics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from ingest.cli.common import (
    ConfigOption,
    JsonOption,
    RankOption,
    StepOption,
    StoreArgument,
    err,
    number,
    print_json,
    print_table,
    say,
    step_name,
    the_store,
)

if TYPE_CHECKING:
    import pandas as pd

    from ingest.reader.tensor import Tensor

NAME = "find"
_MAX_NAME = 100


def command(
    store: StoreArgument = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", "-w", metavar="CONDITION", help="Such as \"nan_count > 0 and io == 'output'\"."
        ),
    ] = None,
    rank: RankOption = None,
    step: StepOption = None,
    name: Annotated[str | None, typer.Option(metavar="GLOB", help="Name, such as '*Log*.output.*'.")] = None,
    regex: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Regular expression, searched in the name.")
    ] = None,
    op_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Operator type, such as MatMul.")
    ] = None,
    graph: Annotated[str | None, typer.Option(metavar="GRAPH", help="Graph.")] = None,
    io: Annotated[
        str | None, typer.Option(metavar="KIND", help="input, output, or what else the dump knows.")
    ] = None,
    consolidated: Annotated[
        bool,
        typer.Option(
            "--consolidated",
            help="Ask the consolidated view: quick over many ranks and steps, as of when it was made.",
        ),
    ] = False,
    include_partial: Annotated[
        bool, typer.Option("--include-partial", help="With --consolidated: take partial steps, too.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="Print no more than this many; 0: all.")] = 0,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Find tensors, in order of step, rank and execution.

    [bold]dump-ingest find run.zarr --where "nan_count > 0"[/]
    [bold]dump-ingest find run.zarr --op-type MatMul --where "max > 6e4 or l2_norm > 1e6"[/]
    """
    from workers.errors import UsageError

    if name is not None and regex is not None:
        raise UsageError("--name and --regex exclude each other")
    try:
        pattern = re.compile(regex) if regex is not None else name
    except re.error as exc:
        raise UsageError(f"--regex {regex!r}: {exc}") from exc
    opened = the_store(store, config)
    if consolidated:
        if where is None or any(one is not None for one in (rank, name, regex, op_type, graph, io)):
            raise UsageError(
                "--consolidated takes --where and --step alone",
                hint="Say it in the condition: --where \"nan_count > 0 and rank == 3 and op_type == 'Log'\".",
            )
        found_in_view = opened.consolidated().find(where, step=step, include_partial=include_partial)
        _print_consolidated(found_in_view, limit=limit, json=json)
        return
    found = opened.tensors(rank, step, graph=graph, op_type=op_type, name=pattern, io=io, where=where)
    shown = found[:limit] if limit else found
    print_tensors(shown, json=json)
    if not json:
        err.print(
            f"{len(found)} tensor{'s' * (len(found) != 1)}"
            + (f", the first {limit} shown" if len(shown) < len(found) else "")
        )


def _print_consolidated(found: pd.DataFrame, *, limit: int, json: bool) -> None:
    """Print what the view knows of the tensors that fulfil a condition."""
    from workers.arrays.statistics import FIELDS

    shown = found.head(limit) if limit else found
    if json:
        print_json([{str(name): value for name, value in row.items()} for row in shown.to_dict("records")])
    else:
        statistics = [column for column in map(str, shown.columns) if column in FIELDS]
        columns = ["rank", "step", "graph", "name", *statistics]
        rows = [[_cell(row[column]) for column in columns] for row in shown.to_dict("records")]
        print_table(columns, rows, right=statistics)
        err.print(
            f"{len(found)} tensor{'s' * (len(found) != 1)}"
            + (f", the first {limit} shown" if len(shown) < len(found) else "")
            + f"; as of {found.attrs['consolidated_at']}"
        )
    for left_out in found.attrs["left_out"]:
        say(left_out, before="[yellow]left out:[/] ")


def _cell(value: float | str) -> str:
    return number(value) if isinstance(value, float) else str(value)


def print_tensors(tensors: list[Tensor], *, json: bool) -> None:
    """Print tensors with their statistics."""
    if json:
        print_json([tensor.to_dict() for tensor in tensors])
        return
    numbers = ("NaN", "+Inf", "-Inf", "min", "max", "mean", "std")
    print_table(
        ("rank", "step", "graph", "name", "dtype", "shape", *numbers),
        (_row(tensor) for tensor in tensors),
        right=numbers,
    )


def _row(tensor: Tensor) -> tuple[str, ...]:
    s = tensor.statistics
    counts = (s.nan_count, s.pos_inf_count, s.neg_inf_count)
    return (
        str(tensor.rank),
        step_name(tensor.step),
        tensor.graph,
        tensor.name if len(tensor.name) <= _MAX_NAME else f"{tensor.name[:48]}...{tensor.name[-49:]}",
        tensor.dtype,
        "x".join(map(str, tensor.shape)) or "()",
        *(number(value) for value in (*counts, s.min, s.max, s.mean, s.std)),
    )
