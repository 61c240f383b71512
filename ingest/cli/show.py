"""`dump-ingest show`: one tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ingest
from ingest.cli.files import check_writable
from ingest.cli.opening import open_store, store_and
from ingest.cli.options import ConfigOption, JsonOption, StoreArgument
from ingest.cli.printing import out, print_json, print_line, say
from ingest.cli.show_choice import choose_tensor
from ingest.cli.show_report import (
    MAX_WHOLE_NBYTES,
    check_slice,
    context_row,
    neighbours_row,
    preview,
    print_anatomy,
    print_context,
    print_fields,
    print_neighbours,
    print_slice,
    values_of,
)


def command(
    store: StoreArgument = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The name of the tensor, or a glob that only one name matches.",
            show_default=False,
        ),
    ] = None,
    *,
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank", "-r", metavar="N", min=0, help="The rank. Default: the only one.", show_default=False
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            "-n",
            metavar="N",
            min=0,
            help="The step. Default: none, as for constants, or the only one.",
            show_default=False,
        ),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(metavar="GRAPH", help="The graph, if several have a tensor of that name."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="INDEX", help="Print all values of this slice, such as '3:5,:'."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the tensor, or the slice, to this .npy file.", show_default=False
        ),
    ] = None,
    scan: Annotated[
        bool,
        typer.Option(
            "--scan",
            help="Read a tensor of over 64 MiB for percentiles and NaN, too.",
            show_default=False,
        ),
    ] = False,
    stack: Annotated[
        bool,
        typer.Option("--stack", help="Print the whole call stack of the operator.", show_default=False),
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show one tensor: its source line, who wrote and read it, what is in it, its values.

    Values are printed as numpy prints them.

    [bold]dump-ingest show run.zarr 'Log.*.output.0' --rank 1 --step 2[/]
    [bold]dump-ingest show run.zarr 'Log.*.output.0' --rank 1 --step 2 --at '3:5,:' --save rows.npy[/]
    """
    from ingest.reader.anatomy.index import parse_index  # deferred: numpy takes 0.1 s to import
    from ingest.reader.context.configuration import sample_of  # deferred: numpy and zarr, as above

    if save is not None:
        check_writable(save, "--save")
    store, name = store_and(store, name, config, placeholder="NAME")
    opened = open_store(store, config)
    tensor = choose_tensor(opened, name, rank, step, graph)
    values = None if at is None else tensor[parse_index(at, tensor.shape)]
    if save is not None:
        _save(tensor, values, save)
    elif values is not None and at is not None:
        check_slice(values, at)
    is_readable = tensor.is_dumped and not tensor.removed
    is_examined = is_readable and (scan or tensor.nbytes <= MAX_WHOLE_NBYTES)
    anatomy = tensor.examine() if is_examined else None
    context = ingest.context_of(opened, tensor.rank)
    sample = sample_of(opened, tensor.rank)
    if json:
        row = {
            **({"sample": sample} if sample else {}),
            **tensor.to_dict(),
            **context_row(context, tensor),
            **neighbours_row(tensor),
        }
        print_json(
            {
                **row,
                "anatomy": anatomy.to_dict() if anatomy else None,
                "at": at,
                "values": None if save else values_of(tensor, values),
            }
        )
    else:
        print_fields(tensor, sample)
        print_context(context, tensor, whole_stack=stack)
        print_neighbours(tensor)
        if anatomy is not None:
            print_anatomy(anatomy)
        elif is_readable:
            print_line("(--scan reads the whole tensor for NaN, percentiles and a histogram)")
        out.print()
        if values is None or at is None:
            out.print(preview(tensor), markup=False, soft_wrap=True)
        elif save is None:
            print_slice(values, at)
    for problem in context.problems:
        say(problem, label="warning")


def _save(tensor: ingest.Tensor, values: object, path: Path) -> None:
    dtype = ingest.save_npy(tensor if values is None else values, path)
    say(f"wrote {path}" + (f" as {dtype}, because numpy does not have {tensor.dtype}" if dtype else ""))
