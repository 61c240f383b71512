"""`dump-ingest show`: one tensor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ingest.cli.common import ConfigOption, JsonOption, number, out, print_json, printable, the_store

if TYPE_CHECKING:
    from ingest.reader.store import DumpStore
    from ingest.reader.tensor import Tensor

NAME = "show"
#: A larger tensor is not read as a whole for its preview.
_MAX_WHOLE_NBYTES = 64 * 1024 * 1024
_EDGE = 6


def command(
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store: a directory or URL.")],
    name: Annotated[str, typer.Argument(help="Name of the tensor, or a glob that only one fits.")],
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, help="The rank.")],
    step: Annotated[int, typer.Option("--step", "-n", min=0, help="The step.")],
    graph: Annotated[
        str | None, typer.Option(help="The graph, where several have a tensor of that name.")
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the statistics of one tensor, and its values as numpy would.

    [bold]dump-ingest show run.zarr 'Log.*.output.0' --rank 1 --step 2[/]
    """
    tensor = _the_tensor(the_store(store, config), name, rank, step, graph)
    if json:
        print_json(tensor.as_dict())
        return
    for field, value in tensor.as_dict().items():
        out.print(printable(f"{field:16} {_text(value)}"), markup=False, soft_wrap=True)
    out.print()
    out.print(_preview(tensor), markup=False, soft_wrap=True)


def _text(value: Any) -> str:
    return number(value) if isinstance(value, float) or value is None else str(value)


def _the_tensor(store: DumpStore, name: str, rank: int, step: int, graph: str | None) -> Tensor:
    from workers.errors import UsageError

    tensors = store.tensors(rank, step, graph=graph)
    exact = [tensor for tensor in tensors if tensor.name == name]
    found = exact or store.tensors(rank, step, graph=graph, name=name)
    if not found:
        close = _similar(name, [tensor.name for tensor in tensors])
        raise UsageError(
            f"rank {rank} step {step} has no tensor {name!r}",
            hint=f"Similar: {', '.join(close)}" if close else "List them: dump-ingest ls STORE --tensors",
        )
    if len(found) > 1:
        names = "\n    ".join(f"graph {t.graph}  {t.name}" for t in found[:10])
        raise UsageError(
            f"rank {rank} step {step} has {len(found)} tensors that fit {name!r}:\n    {names}",
            hint="Name one of them; --graph tells graphs apart.",
        )
    return found[0]


def _similar(name: str, names: list[str]) -> list[str]:
    import difflib

    words = name.strip("*").lower()
    inside = [one for one in names if words in one.lower()]
    return (inside or difflib.get_close_matches(name, names, n=3, cutoff=0.4))[:3]


def _preview(tensor: Tensor) -> str:
    import numpy as np

    if tensor.nbytes <= _MAX_WHOLE_NBYTES:
        return np.array2string(tensor.read(), threshold=1000, edgeitems=3, max_line_width=120)
    first, last = tensor.edges(_EDGE)
    return f"[{_join(first)} ... {_join(last)}]  ({math.prod(tensor.shape)} elements, flat)"


def _join(values: Any) -> str:
    return " ".join(str(value) for value in values)
