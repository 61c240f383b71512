"""`dump-ingest show`: one tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

import ingest
from ingest.cli.exits import end_if_damaged
from ingest.cli.options import ConfigOption, JsonOption, StoreArgument, open_store, store_and
from ingest.cli.printing import (
    GAP,
    cell_widths,
    check_writable,
    is_terminal,
    print_json,
    print_line,
    print_table,
    print_wrapped,
    say,
    terminal_width,
)
from ingest.reader.choice import format_ranges
from ingest.reader.text import number_text, shape_text
from workers.errors import UsageError
from workers.rules.names import hint_of_case, near


def show_command(
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
    if is_whole and rank is None:
        rank = next(iter(opened.ranks), None)
    tensor = choose_tensor(opened, name, rank, step, graph)
    if window is not None:
        if is_whole or at is not None or save is not None:
            raise UsageError("--window does not go with --at, --save, --unsharded or --placement")
        _print_window(tensor, window, json=json)
        return
    if is_whole:
        show_whole(tensor, placement, at, save, json=json)
        return
    _show(opened, tensor, at, save, scan=scan, stack=stack, json=json)


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
    # deferred: numpy takes 0.1 s to import
    from ingest.reader.anatomy import parse_index
    from ingest.reader.context.files import sample_of
    from ingest.reader.shown import anatomy_of, check_slice, shown_row

    values = None if at is None else tensor[parse_index(at, tensor.shape)]
    if save is not None:
        _save(tensor if values is None else values, tensor.dtype, save)
    elif values is not None and at is not None:
        check_slice(values, at)
    anatomy = anatomy_of(tensor, scan=scan)
    context = ingest.context_of(opened, tensor.rank)
    sample = sample_of(opened, tensor.rank)
    damaged: list[str] = []
    if json:
        row = shown_row(tensor, context, anatomy, at, values, sample=sample, has_values=save is None)
        print_json(row)
        damaged += [row["damaged"]] if "damaged" in row else []
    else:
        facts = [*_index_facts(tensor, sample), *_context_facts(context, tensor, whole_stack=stack)]
        for fact in (*facts, *_neighbour_facts(tensor)):
            _print_field(*fact)
        if anatomy is not None:
            _print_anatomy(anatomy)
        elif tensor.is_dumped and not tensor.removed:
            print_line("(--scan reads the whole tensor for NaN, percentiles and a histogram)")
        print_line("")
        if values is None or at is None:
            typer.echo(_preview(tensor))
        elif save is None:
            _print_slice(values, at)
    for problem in context.problems:
        say(problem, label="warning")
    end_if_damaged(damaged)


def _check_npy(path: Path) -> None:
    if path.suffix not in ("", ".npy"):
        raise UsageError(
            f"--save {path}: the file will be of numpy's format, whose names end in .npy",
            hint=f"Name it {path.with_suffix('.npy')}; in PyTorch: torch.from_numpy(numpy.load(FILE)).",
        )
    check_writable(path, "--save")


def _save(values: object, dtype: str, path: Path) -> None:
    widened = ingest.save_npy(values, path)
    say(f"wrote {path}" + (f" as {widened}, because numpy does not have {dtype}" if widened else ""))


#: Names that a message suggests, at most.
_SIMILAR = 3
#: Names of which a message asks for one, at most.
_LISTED = 10


def choose_tensor(
    store: ingest.DumpStore, name: str, rank: int | None, step: int | None, graph: str | None
) -> ingest.Tensor:
    """Return the tensor of that name, or else the only one that the name matches as a glob.

    Without a rank: that of a store with a single rank. Without a step: a tensor that belongs to no step or,
    if there is none, one of the only step.

    Raises:
        UsageError: no tensor matches, or several do; or the store has several ranks or steps to choose from.
    """
    chosen = _only_rank(store) if rank is None else rank
    if step is None and not _matching(_outside(store, chosen), name, graph):
        steps = [key.step for key in store.listed(chosen) if key.step is not None]
        if len(steps) > 1:
            raise UsageError(
                f"{store.url}: rank {chosen} has {len(steps)} steps",
                hint=f"Name one with --step: {format_ranges(steps)}.",
            )
        if steps:
            return _the_tensor(store, name, chosen, steps[0], graph)
    return _the_tensor(store, name, chosen, step, graph)


def _only_rank(store: ingest.DumpStore) -> int:
    if len(store.ranks) == 1:
        return store.ranks[0]
    raise UsageError(
        f"{store.url}: there are {len(store.ranks)} ranks",
        hint=f"Name one with --rank: {format_ranges(store.ranks)}." if store.ranks else "The store is empty.",
    )


def _matching(tensors: Sequence[ingest.Tensor], name: str, graph: str | None) -> list[ingest.Tensor]:
    of_graph = [tensor for tensor in tensors if graph in (None, tensor.graph)]
    exact = [tensor for tensor in of_graph if tensor.name == name]
    return exact or [tensor for tensor in of_graph if fnmatchcase(tensor.name, name)]


def _the_tensor(
    store: ingest.DumpStore, name: str, rank: int, step: int | None, graph: str | None
) -> ingest.Tensor:
    tensors = _outside(store, rank) if step is None else store.tensors(rank=rank, step=step)
    matches = _matching(tensors, name, graph)
    if len(matches) == 1:
        return matches[0]
    where = f"rank {rank}" if step is None else f"rank {rank} step {step}"
    outside = " outside of its steps" if step is None else ""
    if not matches:
        names = [tensor.name for tensor in tensors]
        similar = ", ".join(near(name, names)[:_SIMILAR])
        others = f"Similar: {similar}" if similar else "List them: dump-ingest ls STORE --tensors"
        hint = hint_of_case(name, names) or others
        raise UsageError(f"{where} has no tensor {name!r}{outside}", hint=hint)
    lines = [f"{where} has {len(matches)} tensors{outside} that match {name!r}:", *_listed(matches)]
    raise UsageError("\n    ".join(lines), hint="Name one of them; --graph tells graphs apart.")


def _listed(tensors: Sequence[ingest.Tensor]) -> list[str]:
    shown = tensors[:_LISTED]
    rows = [f"graph {tensor.graph}  {tensor.name}" if tensor.graph else tensor.name for tensor in shown]
    return [*rows, f"{len(tensors) - _LISTED} more"] if len(tensors) > _LISTED else rows


def _outside(store: ingest.DumpStore, rank: int) -> list[ingest.Tensor]:
    try:
        return store.step(rank, None).tensors()
    except UsageError:
        if rank not in store.ranks:
            raise
        return []


#: How many elements of a larger tensor are printed at each end.
_EDGE = 6
#: How many neighbours of one kind are printed; `--json` has all.
_MAX_NEIGHBOURS = 8
#: The longest and the shortest bar of a histogram.
_BAR, _MIN_BAR = 40, 8
#: Characters of a line of values.
_VALUES = 120
#: Fields of which the name consists, and the number that only orders files.
_IN_THE_NAME = {"op_type", "op_name", "io", "slot", "occurrence", "timestamp"}
#: What fields say of nearly every tensor.
_USUAL = {"format": "DefaultFormat", "statistics_from": "computed", "is_dumped": True}


#: What a line is about, and what it says.
_Fact: TypeAlias = tuple[str, str]


def _context_facts(context: ingest.Context, tensor: ingest.Tensor, *, whole_stack: bool) -> Iterator[_Fact]:
    line, match = context.source_line(tensor), context.match(tensor)
    if match is not None and match.name is None:
        yield "operator", "one of " + ", ".join(match.names) + (", ..." * (not match.is_whole))
    if line is not None:
        yield "source_line", _line_text(line)
        for frame in line.stack if whole_stack else ():
            function = f" in {frame.function}" if frame.function else ""
            yield "", f"{frame.file}:{frame.line}{function}  {frame.code}"
    if (parent := context.parent(tensor)) is not None:
        yield "parent", parent
    if originals := context.original_names(tensor):
        yield "fused_from", ", ".join(originals)
    for name, value in (context.kernel_args(tensor) or {}).items():
        yield "kernel_args", f"{name}: {value}"


def _line_text(line: ingest.SourceLine) -> str:
    remarks = [f"of the {line.of}"] if line.of != "op" else []
    remarks += [f"operator {line.op}, matched {line.matched}"] if line.matched != "exact" else []
    return f"{line.file}:{line.line}  {line.code}" + (f"  ({'; '.join(remarks)})" if remarks else "")


def _print_field(field: str, text: str) -> None:
    print_wrapped(f"{field:16} {text}", indent=17)


def _index_facts(tensor: ingest.Tensor, sample: int) -> Iterator[_Fact]:
    """Yield what the index has of a tensor, without what says nothing: `--json` has all.

    Args:
        tensor: the tensor.
        sample: how many elements of its beginning and its end were dumped; 0 for all.
    """
    if sample:
        yield "sample", f"the first and the last {sample} elements: statistics are about these"
    row = tensor.to_dict()
    for field, value in row.items():
        if field not in _IN_THE_NAME and not _says_nothing(field, value, row):
            yield field, number_text(value) if isinstance(value, float) else str(value)


def _says_nothing(field: str, value: Any, row: Mapping[str, Any]) -> bool:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return True
    if field == "declared_dtype":
        return str(value).lower() == str(row["dtype"])
    if field == "nan_count":
        return False  # that there is none is worth a line
    return (field.endswith("_count") and not value) or _USUAL.get(field) == value


def _neighbour_facts(tensor: ingest.Tensor) -> Iterator[_Fact]:
    for label, neighbours in (("written_by", tensor.producers), ("read_by", tensor.consumers)):
        for neighbour in neighbours[:_MAX_NEIGHBOURS]:
            fused = ", ".join(neighbour.fused_from)
            parts = f"  (fused from {fused})" if fused else ""
            doubt = "" if neighbour.is_certain else "  (equal constants: may be by chance)"
            doubt = "  (by the graph; it holds other bytes)" if neighbour.by == "graph" else doubt
            yield label, f"{neighbour.tensor.name}{parts}{doubt}"
        if rest := len(neighbours[_MAX_NEIGHBOURS:]):
            yield label, f"... and {rest} more (--json: all)"


def _print_anatomy(anatomy: ingest.Anatomy) -> None:
    if anatomy.first:
        print_line("")
        total = anatomy.nan + anatomy.pos_inf + anatomy.neg_inf
        places = ", ".join(
            f"[{', '.join(map(str, element.index))}] {element.value}" for element in anatomy.first
        )
        more = ", ..." * (total > len(anatomy.first))
        _print_field("not finite", f"{total} of {anatomy.elements}: {places}{more}")
        for axis in anatomy.axes:
            worst = ", ".join(f"{position} ({count})" for position, count in axis.worst[:5])
            more = ", ..." * (axis.affected > 5)
            _print_field(f"  axis {axis.axis}", f"{axis.affected} of {axis.length} positions: {worst}{more}")
    if anatomy.percentiles:
        print_line("")
        _print_field(
            "percentiles",
            "  ".join(f"{percent:g}%={number_text(value)}" for percent, value in anatomy.percentiles.items()),
        )
    if anatomy.counts:
        print_line("")
        _print_histogram(anatomy)


def _print_histogram(anatomy: ingest.Anatomy) -> None:
    numbers, most = ("from", "to", "elements"), max(anatomy.counts)
    rows = [
        (number_text(low), number_text(high), str(count))
        for low, high, count in zip(anatomy.edges, anatomy.edges[1:], anatomy.counts, strict=False)
    ]
    room = terminal_width() - sum(width + GAP for width in cell_widths(numbers, rows))
    longest = min(max(room, _MIN_BAR), _BAR) if is_terminal() else _BAR
    bars = ["█" * math.ceil(count / most * longest) for count in anatomy.counts]
    print_table((*numbers, ""), [(*row, bar) for row, bar in zip(rows, bars, strict=True)], right=numbers)


def _preview(tensor: ingest.Tensor) -> str:
    """Return the values as numpy prints them; of a large tensor, those at its ends."""
    # deferred: numpy takes 0.1 s to import
    import numpy as np

    from ingest.reader.tensor import SMALL_NBYTES

    if not tensor.is_dumped:
        return "(only statistics were dumped)"
    if tensor.removed:
        return f"({tensor.removed})"
    if tensor.nbytes <= SMALL_NBYTES:
        return np.array2string(tensor.read(), threshold=1000, edgeitems=3, max_line_width=_line_width())
    first, last = (" ".join(map(str, values)) for values in tensor.edges(_EDGE))
    return f"[{first} ... {last}]  ({math.prod(tensor.shape)} elements, flat)"


def _line_width() -> int:
    return min(_VALUES, terminal_width()) if is_terminal() else _VALUES


def _print_slice(values: Any, at: str) -> None:
    # deferred: numpy takes 0.1 s to import
    import numpy as np

    from ingest.reader.shown import MAX_SLICE_VALUES, check_slice

    check_slice(values, at)
    print_line(f"[{at}]  {shape_text(np.shape(values))}")
    with np.printoptions(threshold=MAX_SLICE_VALUES + 1, linewidth=_line_width()):
        typer.echo(str(values))


def _print_window(tensor: ingest.Tensor, text: str, *, json: bool) -> None:
    from ingest.page.sheet import parse_window  # deferred: numpy takes 0.1 s to import

    window = ingest.window(tensor, *parse_window(text, tensor.shape))
    if json:
        print_json(window)
        return
    lines = zip(window["rows"], window["values"], strict=True)
    columns = window["columns"]
    print_table(("", *columns), ((f"[{row}]", *values) for row, values in lines), right=columns)


#: A tensor of up to this many elements is printed without `--at`.
_MAX_SHOWN = 16 * 1024 * 1024
#: The most elements whose values are in JSON without `--at`.
_MAX_VALUES = 1000


def show_whole(
    tensor: ingest.Tensor, placement: str, at: str | None, save: Path | None, *, json: bool
) -> None:
    """Print a whole tensor or a slice of it, or write it to a file.

    Raises:
        UsageError: it is not known how ranks hold it, the slice is not one, or the file cannot be written.
        DamagedStore: chunks of a piece are missing or damaged.
    """
    # deferred: numpy takes 0.1 s to import
    from ingest.reader.anatomy import parse_index
    from ingest.reader.shown import check_slice

    whole = tensor.unsharded(placement)
    values = None if at is None else whole[parse_index(at, whole.shape)]
    if at is not None and save is None:
        check_slice(values, at)
    if save is not None:
        _save(whole if values is None else values, whole.dtype, save)
    facts = {
        "name": whole.name,
        "ranks": list(whole.ranks),
        "placement": str(whole.placement),
        "known_by": whole.why,
        "dtype": whole.dtype,
        "shape": list(whole.shape),
    }
    if json:
        if values is None and math.prod(whole.shape) <= _MAX_VALUES:
            values = whole.read()
        is_exact = values is not None and values.dtype.kind in "iub"
        told = None if save or values is None else (values if is_exact else values.astype(float)).tolist()
        print_json({**facts, "at": at, "values": told})
        return
    texts = {"ranks": format_ranges(whole.ranks), "shape": shape_text(whole.shape)}
    for field, value in (facts | texts).items():
        _print_field(field, str(value))
    if save is None:
        print_line("")
        if at is not None:
            _print_slice(values, at)
        elif math.prod(whole.shape) <= _MAX_SHOWN:
            typer.echo(str(whole.read()))
