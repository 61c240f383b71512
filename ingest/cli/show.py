"""`dump-ingest show`: one tensor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import ingest
from ingest.cli.exits import exit_if_damaged, say_damaged
from ingest.cli.opening import open_store, store_and
from ingest.cli.options import ConfigOption, JsonOption, StoreArgument
from ingest.cli.printing import check_writable, print_json, print_line, print_text, say
from ingest.cli.show_choice import choose_tensor, first_rank
from ingest.cli.show_report import (
    preview,
    print_anatomy,
    print_context,
    print_field,
    print_fields,
    print_neighbours,
    print_slice,
    print_window,
)
from ingest.cli.show_unsharded import show_whole
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.reader.anatomy import Anatomy
    from ingest.reader.quantization import QuantizationError


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
    window: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS,COLUMNS",
            help="Print these values, such as '20:40,:10', of the tensor as a table: its last axis across.",
        ),
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
    unsharded: Annotated[
        bool,
        typer.Option(
            "--unsharded",
            help="Put it together from the pieces of all ranks, as the dump tells or --placement says.",
            show_default=False,
        ),
    ] = False,
    placement: Annotated[
        str,
        typer.Option(
            metavar="PLACEMENT",
            help="How ranks hold it, such as 'shard 0' or 'partial sum'; implies --unsharded.",
            show_default=False,
        ),
    ] = "",
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
    [bold]dump-ingest show run.zarr 'Parameter.head.weight.output.0' --step 0 --placement 'shard 0'[/]
    """
    if save is not None:
        _check_npy(save)
    store, name = store_and(store, name, config, placeholder="NAME")
    opened = open_store(store, config)
    is_whole = unsharded or bool(placement)
    tensor = choose_tensor(
        opened, name, first_rank(opened) if is_whole and rank is None else rank, step, graph
    )
    if window is not None:
        if is_whole or at is not None or save is not None:
            raise UsageError("--window does not go with --at, --save, --unsharded or --placement")
        print_window(tensor, window, json=json)
        return
    if is_whole:
        show_whole(tensor, placement, at, save, json=json)
        return
    _show(opened, tensor, at, save, scan=scan, stack=stack, json=json)


def _say_problems(problems: Iterable[str]) -> None:
    for problem in problems:
        say(problem, label="warning")


def _print_measures(
    tensor: ingest.Tensor, quantization: QuantizationError | None, anatomy: Anatomy | None
) -> None:
    if quantization is not None:
        print_field("quantised", str(quantization))
    if anatomy is not None:
        print_anatomy(anatomy)
    elif tensor.is_dumped and not tensor.removed:
        print_line("(--scan reads the whole tensor for NaN, percentiles and a histogram)")


def _show(
    opened: ingest.DumpStore,
    tensor: ingest.Tensor,
    at: str | None,
    save: Path | None,
    *,
    scan: bool,
    stack: bool,
    json: bool,
) -> None:
    """Print the tensor of one rank, or write it to a file."""
    # deferred: numpy takes 0.1 s to import
    from ingest.reader.anatomy import parse_index
    from ingest.reader.context.configuration import sample_of
    from ingest.reader.shown import anatomy_of, check_slice, quantization_of, shown_row

    values = None if at is None else tensor[parse_index(at, tensor.shape)]
    if save is not None:
        _save(tensor, values, save)
    elif values is not None and at is not None:
        check_slice(values, at)
    anatomy = anatomy_of(tensor, scan=scan)
    quantization = quantization_of(opened, tensor, scan=scan)
    context = ingest.context_of(opened, tensor.rank)
    sample = sample_of(opened, tensor.rank)
    damaged: list[str] = []
    if json:
        row = shown_row(
            tensor,
            context,
            anatomy,
            at,
            values,
            sample=sample,
            quantization=quantization,
            has_values=save is None,
        )
        print_json(row)
        damaged += [row["damaged"]] if "damaged" in row else []
    else:
        print_fields(tensor, sample)
        print_context(context, tensor, whole_stack=stack)
        print_neighbours(tensor)
        _print_measures(tensor, quantization, anatomy)
        print_text()
        if values is None or at is None:
            print_text(preview(tensor))
        elif save is None:
            print_slice(values, at)
    _say_problems(context.problems)
    say_damaged(damaged)
    exit_if_damaged(damaged)


def _check_npy(path: Path) -> None:
    """Refuse a file that cannot be written, or whose name promises another format."""
    if path.suffix not in ("", ".npy"):
        raise UsageError(
            f"--save {path}: the file will be of numpy's format, whose names end in .npy",
            hint=f"Name it {path.with_suffix('.npy')}; in PyTorch: torch.from_numpy(numpy.load(FILE)).",
        )
    check_writable(path, "--save")


def _save(tensor: ingest.Tensor, values: object, path: Path) -> None:
    dtype = ingest.save_npy(tensor if values is None else values, path)
    say(f"wrote {path}" + (f" as {dtype}, because numpy does not have {tensor.dtype}" if dtype else ""))
