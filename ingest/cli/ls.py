"""`dump-ingest ls`: what is in a store."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ingest.cli.common import (
    ConfigOption,
    JsonOption,
    RankOption,
    StepOption,
    StoreArgument,
    human_bytes,
    print_json,
    print_table,
    step_name,
    the_store,
)

NAME = "ls"


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

    [bold]dump-ingest ls s3://bucket/run.zarr[/]          every step
    [bold]dump-ingest ls run.zarr -r 1 -n 8 --tensors[/]   the tensors of rank 1, step 8, as executed
    """
    from ingest.cli.find import print_tensors
    from ingest.reader.rows import file_rows, overflow_rows, step_row

    opened = the_store(store, config)
    if tensors:
        print_tensors(opened.tensors(rank, step), json=json)
        return
    steps = opened.select(rank, step)
    if files or problems:
        rows = [row for one in steps for row in file_rows(one, problems=problems)]
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
        return
    if overflows:
        _print_overflows([row for one in steps for row in overflow_rows(one)], json=json)
        return
    rows = [step_row(one) for one in steps]
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
                r["status"],
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
