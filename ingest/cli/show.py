"""`dump-ingest show`: one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ingest.cli.common import ConfigOption, JsonOption, number, out, print_json, printable, say, the_store

if TYPE_CHECKING:
    from ingest.reader.catalog import Catalog
    from ingest.reader.context import Context, Frame, SourceLine
    from ingest.reader.tensor import Tensor

NAME = "show"
#: A larger tensor is not read as a whole for its preview.
_MAX_WHOLE_NBYTES = 64 * 1024 * 1024
_EDGE = 6
#: The fields of `source_line` in JSON; the stack stands beside it.
_LINE_FIELDS = ("file", "line", "code", "of", "matched", "op", "source")


def command(
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store: a directory or URL.")],
    name: Annotated[str, typer.Argument(help="Name of the tensor, or a glob that only one fits.")],
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, help="The rank.")],
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            "-n",
            min=0,
            help="The step; without it, a tensor of no step, such as a constant.",
            show_default=False,
        ),
    ] = None,
    graph: Annotated[
        str | None, typer.Option(help="The graph, where several have a tensor of that name.")
    ] = None,
    stack: Annotated[
        bool, typer.Option("--stack", help="Print the whole call stack of its operator.", show_default=False)
    ] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show one tensor: its statistics, the source line of its operator, and its values as numpy would.

    [bold]dump-ingest show run.zarr 'Log.*.output.0' --rank 1 --step 2[/]
    """
    from ingest.reader.context import context_of

    opened = the_store(store, config)
    tensor = _the_tensor(opened, name, rank, step, graph)
    context = context_of(opened, rank)
    if json:
        print_json({**tensor.to_dict(), **_context_row(context, tensor)})
    else:
        for field, value in tensor.to_dict().items():
            _print_field(field, _text(value))
        _print_context(context, tensor, whole_stack=stack)
        out.print()
        out.print(_preview(tensor), markup=False, soft_wrap=True)
    for problem in context.problems:
        say(problem, before="[yellow]warning:[/] ")


def _context_row(context: Context, tensor: Tensor) -> dict[str, Any]:
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


def _print_context(context: Context, tensor: Tensor, *, whole_stack: bool) -> None:
    """Print what is known; nothing of what is not."""
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


def _line_text(line: SourceLine) -> str:
    """Write a line, and what keeps it from being simply that of the operator."""
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


def _text(value: Any) -> str:
    if isinstance(value, float) or value is None:
        return number(value)
    return str(value) if value != "" else "-"


def _the_tensor(store: Catalog, name: str, rank: int, step: int | None, graph: str | None) -> Tensor:
    from fnmatch import fnmatchcase

    from workers.errors import UsageError

    tensors = [one for one in _tensors(store, rank, step) if graph in (None, one.graph)]
    exact = [tensor for tensor in tensors if tensor.name == name]
    found = exact or [tensor for tensor in tensors if fnmatchcase(tensor.name, name)]
    where, outside = f"rank {rank} step {step}", ""
    if step is None:
        where, outside = f"rank {rank}", " outside of its steps"
    if not found:
        close = _similar(name, [tensor.name for tensor in tensors])
        others = (
            "List them: dump-ingest ls STORE --tensors" if outside == "" else "Name its step with --step."
        )
        hint = f"Similar: {', '.join(close)}" if close else others
        raise UsageError(f"{where} has no tensor {name!r}{outside}", hint=hint)
    if len(found) > 1:
        names = "\n    ".join(f"graph {t.graph}  {t.name}" for t in found[:10])
        raise UsageError(
            f"{where} has {len(found)} tensors{outside} that fit {name!r}:\n    {names}",
            hint="Name one of them; --graph tells graphs apart.",
        )
    return found[0]


def _tensors(store: Catalog, rank: int, step: int | None) -> list[Tensor]:
    """Return the tensors of one step; with None those of no step, of which there may be none."""
    from workers.errors import UsageError

    if step is not None:
        return store.tensors(rank, step)
    try:
        return store.step(rank, None).tensors()
    except UsageError:
        if rank not in store.ranks:
            raise
        return []


def _similar(name: str, names: list[str]) -> list[str]:
    import difflib

    words = name.strip("*").lower()
    inside = [one for one in names if words in one.lower()]
    return (inside or difflib.get_close_matches(name, names, n=3, cutoff=0.4))[:3]


def _preview(tensor: Tensor) -> str:
    import numpy as np

    if not tensor.is_dumped:
        return "(only statistics were dumped)"
    if tensor.removed:
        return f"({tensor.removed})"
    if tensor.nbytes <= _MAX_WHOLE_NBYTES:
        return np.array2string(tensor.read(), threshold=1000, edgeitems=3, max_line_width=120)
    first, last = tensor.edges(_EDGE)
    return f"[{_join(first)} ... {_join(last)}]  ({math.prod(tensor.shape)} elements, flat)"


def _join(values: Any) -> str:
    return " ".join(str(value) for value in values)
