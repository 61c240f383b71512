"""`dump-ingest ls`: what is in a store."""

from __future__ import annotations

from typing import Annotated

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
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the committed steps, or the tensors, files or problems in them.

    [bold]dump-ingest ls s3://bucket/run.zarr[/]          every step
    [bold]dump-ingest ls run.zarr -r 1 -n 8 --tensors[/]   the tensors of rank 1, step 8, as executed
    """
    from ingest.cli.find import print_tensors
    from ingest.reader.rows import file_rows, step_row

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
    rows = [step_row(one) for one in steps]
    if json:
        print_json(rows)
        return
    numbers = ("tensors", "files", "NaN", "Inf", "problems", "raw", "stored")
    print_table(
        ("rank", "step", "status", *numbers, "committed"),
        (
            (
                str(r["rank"]),
                step_name(r["step"]),
                r["status"],
                str(r["tensors"]),
                str(r["files"]),
                str(r["nan_count"]),
                str(r["pos_inf_count"] + r["neg_inf_count"]),
                str(r["quarantined"] + r["unparsed"]),
                human_bytes(r["raw_bytes"]),
                human_bytes(r["stored_bytes"]),
                r["committed_at"][:19].replace("T", " "),
            )
            for r in rows
        ),
        right=numbers,
    )
