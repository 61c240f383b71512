"""`dump-ingest show`: one tensor."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ingest
from ingest.cli.opening import open_store, store_and
from ingest.cli.options import ConfigOption, JsonOption, StoreArgument
from ingest.cli.printing import number_text, out, print_json, printable, say
from workers.errors import UsageError

if TYPE_CHECKING:
    from ingest.reader.context import Frame

#: A larger tensor is not read as a whole for its preview.
_MAX_WHOLE_NBYTES = 64 * 1024 * 1024
#: How many elements of a larger tensor are printed at each end.
_EDGE = 6
#: The fields of `source_line` in JSON; the stack is a field of its own.
_LINE_FIELDS = ("file", "line", "code", "of", "matched", "op", "source")


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
    rank: Annotated[int, typer.Option("--rank", "-r", metavar="N", min=0, help="The rank.")],
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            "-n",
            min=0,
            help="The step. Without it: a tensor that belongs to no step, such as a constant.",
            show_default=False,
        ),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(metavar="GRAPH", help="The graph, if several have a tensor of that name."),
    ] = None,
    stack: Annotated[
        bool,
        typer.Option("--stack", help="Print the whole call stack of the operator.", show_default=False),
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show one tensor: its statistics, the source line of its operator, and its values.

    Values are printed as numpy prints them.

    [bold]dump-ingest show run.zarr 'Log.*.output.0' --rank 1 --step 2[/]
    """
    store, name = store_and(store, name, config, placeholder="NAME")
    opened = open_store(store, config)
    tensor = _the_tensor(opened, name, rank, step, graph)
    context = ingest.context_of(opened, rank)
    if json:
        print_json({**tensor.to_dict(), **_context_row(context, tensor)})
    else:
        for field, value in tensor.to_dict().items():
            _print_field(field, _field_text(value))
        _print_context(context, tensor, whole_stack=stack)
        out.print()
        out.print(_preview(tensor), markup=False, soft_wrap=True)
    for problem in context.problems:
        say(problem, label="warning")


def _context_row(context: ingest.Context, tensor: ingest.Tensor) -> dict[str, Any]:
    line = context.source_line(tensor)
    match = context.match(tensor)
    return {
        "source_line": {name: getattr(line, name) for name in _LINE_FIELDS} if line else None,
        "stack": [asdict(frame) for frame in line.stack] if line else [],
        "operator": match.name if match else None,
        "candidates": list(match.names) if match and match.name is None else [],
        "position": context.position(tensor),
        "parent": context.parent(tensor),
        "kernel_args": context.kernel_args(tensor),
    }


def _print_context(context: ingest.Context, tensor: ingest.Tensor, *, whole_stack: bool) -> None:
    """Print what is known about the operator, without lines for what is not known."""
    line = context.source_line(tensor)
    match = context.match(tensor)
    if match is not None and match.name is None:
        _print_field("operator", "one of " + ", ".join(match.names) + (", ..." * (not match.is_whole)))
    if line is not None:
        _print_field("source_line", _line_text(line))
        if whole_stack:
            _print_stack(line.stack)
    if (parent := context.parent(tensor)) is not None:
        _print_field("parent", parent)
    for name, value in (context.kernel_args(tensor) or {}).items():
        _print_field("kernel_args", f"{name}: {value}")


def _line_text(line: ingest.SourceLine) -> str:
    """Return a source line; remarks say if it is not exactly that of the operator."""
    remarks = []
    if line.of != "op":
        remarks.append(f"of the {line.of}")
    if line.matched != "exact":
        remarks.append(f"operator {line.op}, matched {line.matched}")
    return f"{line.file}:{line.line}  {line.code}" + (f"  ({'; '.join(remarks)})" if remarks else "")


def _print_stack(stack: Sequence[Frame]) -> None:
    for frame in stack:
        function = f" in {frame.function}" if frame.function else ""
        _print_field("", f"{frame.file}:{frame.line}{function}  {frame.code}")


def _print_field(field: str, text: str) -> None:
    out.print(printable(f"{field:16} {text}"), markup=False, soft_wrap=True)


def _field_text(value: Any) -> str:
    if isinstance(value, float) or value is None:
        return number_text(value)
    return str(value) if value != "" else "-"


def _the_tensor(
    store: ingest.DumpStore, name: str, rank: int, step: int | None, graph: str | None
) -> ingest.Tensor:
    """Return the tensor of that name, or else the only one that the name matches as a glob.

    Raises:
        UsageError: no tensor matches, or several do.
    """
    tensors = [tensor for tensor in _tensors(store, rank, step) if graph in (None, tensor.graph)]
    exact = [tensor for tensor in tensors if tensor.name == name]
    matches = exact or [tensor for tensor in tensors if fnmatchcase(tensor.name, name)]
    if len(matches) == 1:
        return matches[0]
    where = f"rank {rank}" if step is None else f"rank {rank} step {step}"
    outside = " outside of its steps" if step is None else ""
    if not matches:
        similar = _similar(name, [tensor.name for tensor in tensors])
        raise UsageError(f"{where} has no tensor {name!r}{outside}", hint=_where_to_look(similar, step))
    raise UsageError(
        f"{where} has {len(matches)} tensors{outside} that match {name!r}:{_listed(matches)}",
        hint="Name one of them; --graph tells graphs apart.",
    )


def _listed(tensors: Sequence[ingest.Tensor]) -> str:
    return "".join(f"\n    graph {tensor.graph}  {tensor.name}" for tensor in tensors[:10])


def _where_to_look(similar: Sequence[str], step: int | None) -> str:
    if similar:
        return f"Similar: {', '.join(similar)}"
    return "Name its step with --step." if step is None else "List them: dump-ingest ls STORE --tensors"


def _tensors(store: ingest.DumpStore, rank: int, step: int | None) -> list[ingest.Tensor]:
    """Return the tensors of one step; with None, the tensors that belong to no step, if any."""
    if step is not None:
        return store.tensors(rank=rank, step=step)
    try:
        return store.step(rank, None).tensors()
    except UsageError:
        if rank not in store.ranks:
            raise
        return []


def _similar(name: str, names: Sequence[str]) -> list[str]:
    words = name.strip("*").lower()
    containing = [other for other in names if words in other.lower()]
    return (containing or difflib.get_close_matches(name, names, n=3, cutoff=0.4))[:3]


def _preview(tensor: ingest.Tensor) -> str:
    import numpy as np  # deferred: takes 0.1 s to import

    if not tensor.is_dumped:
        return "(only statistics were dumped)"
    if tensor.removed:
        return f"({tensor.removed})"
    if tensor.nbytes <= _MAX_WHOLE_NBYTES:
        return np.array2string(tensor.read(), threshold=1000, edgeitems=3, max_line_width=120)
    first, last = tensor.edges(_EDGE)
    return f"[{_joined(first)} ... {_joined(last)}]  ({math.prod(tensor.shape)} elements, flat)"


def _joined(values: Any) -> str:
    return " ".join(str(value) for value in values)
