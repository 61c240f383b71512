"""`dump-ingest ls`: what is in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ingest.cli.common import (
    EXIT_DAMAGE,
    ConfigOption,
    JsonOption,
    RankOption,
    StepOption,
    StoreArgument,
    print_json,
    print_table,
    say,
    step_name,
    the_store,
)
from ingest.units import human_bytes

if TYPE_CHECKING:
    from ingest.reader.catalog import Damage
    from ingest.reader.step import Step

NAME = "ls"
_Row = TypeVar("_Row")


def command(
    store: StoreArgument = None,
    rank: RankOption = None,
    step: StepOption = None,
    tensors: Annotated[bool, typer.Option("--tensors", "-t", help="List the tensors of the steps.")] = False,
    files: Annotated[bool, typer.Option("--files", help="List the files that are no tensors.")] = False,
    problems: Annotated[
        bool,
        typer.Option("--problems", help="List what is quarantined or has a name that is not understood."),
    ] = False,
    overflows: Annotated[
        bool, typer.Option("--overflows", help="List the overflow records, and the operators that failed.")
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the committed steps, or the tensors, files, problems or overflow records in them.

    Exits with 3 when something is damaged: that is named, and the rest is listed.

    [bold]dump-ingest ls s3://bucket/run.zarr[/]          every step
    [bold]dump-ingest ls run.zarr -r 1 -n 8 --tensors[/]   the tensors of rank 1, step 8, as executed
    """
    from ingest.cli.find import print_tensors
    from ingest.reader.rows import file_rows, overflow_rows, step_row

    opened = the_store(store, config)
    damages: list[Damage] = []
    steps = opened.select(rank, step, damages=damages)
    if tensors:
        print_tensors(_each(steps, lambda one: one.tensors(), damages), json=json)
    elif files or problems:
        _print_files(_each(steps, lambda one: file_rows(one, problems=problems), damages), json=json)
    elif overflows:
        _print_overflows(_each(steps, overflow_rows, damages), json=json)
    else:
        _print_steps([step_row(one) for one in steps], json=json)
    for damage in damages:
        say(f"{damage.key}: {damage.reason}", before="[red]damaged:[/] ")
    if damages:
        raise typer.Exit(EXIT_DAMAGE)


def _each(steps: list[Step], rows_of: Callable[[Step], Iterable[_Row]], damages: list[Damage]) -> list[_Row]:
    """Return the rows of each step; note those whose index is damaged, and go on."""
    from ingest.reader.catalog import Damage
    from workers.errors import DamagedStore

    rows: list[_Row] = []
    for one in steps:
        try:
            rows += rows_of(one)
        except DamagedStore as exc:
            damages.append(Damage(one.key, "", exc.message))
    return rows


def _print_files(rows: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json(rows)
        return
    print_table(
        ("rank", "step", "kind", "bytes", "source", "problem"),
        (
            (
                str(r["rank"]),
                step_name(r["step"]),
                r["kind"],
                human_bytes(r["nbytes"]),
                r["source"],
                r["problem"],
            )
            for r in rows
        ),
        right=("bytes",),
    )


def _print_steps(rows: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json(rows)
        return
    numbers = ("tensors", "files", "NaN", "Inf", "overflows", "problems", "raw", "stored")
    print_table(
        ("rank", "step", "status", *numbers, "committed"),
        (
            (
                str(r["rank"]),
                step_name(r["step"]),
                r["status"] + ("" if r["has_tensors"] else ", no tensors"),
                str(r["tensors"] + r["statistics_only"]),
                str(r["files"]),
                str(r["nan_count"]),
                str(r["pos_inf_count"] + r["neg_inf_count"]),
                str(r["overflows"]),
                str(r["quarantined"] + r["unparsed"] + r["disagreements"]),
                human_bytes(r["raw_bytes"]),
                human_bytes(r["stored_bytes"]),
                r["committed_at"][:19].replace("T", " "),
            )
            for r in rows
        ),
        right=numbers,
    )


def _print_overflows(rows: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json(rows)
        return
    print_table(
        ("rank", "step", "unit", "stream", "task", "operator", "source"),
        (
            (
                str(r["rank"]),
                step_name(r["step"]),
                r["unit"],
                str(r["stream"]),
                str(r["task"]),
                f"{r['op_type']}.{r['op_name']}" if r["op_name"] else "not in the dump",
                r["source"],
            )
            for r in rows
        ),
        right=("stream", "task"),
    )
