"""`dump-ingest localize`: where tensors of two steps differ, without reading them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import ingest
from ingest.cli.exits import EXIT_DIFFERENT
from ingest.cli.options import JsonOption
from ingest.cli.printing import limited, print_json, print_table, say, say_rest, short_name
from ingest.cli.tensor_options import Conditions, takes_tensor_options
from ingest.reader.text import counted, shape_text

if TYPE_CHECKING:  # it imports numpy, and --help needs none of it
    from ingest.questions.localize import DifferingPositions, DifferingRange

_COLUMNS = ("name", "shape", "blocks", "differ", "elements", "positions")
#: Ranges of one tensor that the table shows.
_SHOWN = 3


@takes_tensor_options
def command(
    a: Annotated[str, typer.Argument(metavar="A", help="A step of a rank: STORE@RANK,STEP.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The reference, in the same form.")],
    *,
    chosen: Conditions,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many tensors; 0: all.")] = 50,
    json: JsonOption = False,
) -> None:
    """Say where tensors of two steps differ, without reading them: also after gc.

    Elements: every one that differs is among these, which are blocks of 64 KiB. Positions: rows, columns or
    channels that certainly differ, by their sums; others may differ by less than rounding. Exits with 5 if
    any tensor differs.

    [bold]dump-ingest localize run.zarr@0,40 run.zarr@1,40 --role weight[/]
    """
    answer = ingest.localize(a, b, **chosen)
    if json:
        print_json(answer.to_dict())
    else:
        shown = limited(answer.tensors, limit)
        rows = [
            (
                short_name(tensor.name),
                shape_text(tensor.shape),
                str(tensor.blocks),
                str(tensor.differing) if not tensor.reason else "-",
                tensor.reason or _ranges_text(tensor.ranges),
                "; ".join(map(_positions_text, tensor.positions)),
            )
            for tensor in shown
        ]
        if rows:
            print_table(_COLUMNS, rows, right=("blocks", "differ"))
        say_rest(len(answer.tensors), len(shown), "tensors")
        if any(tensor.exactness == "bounded" for tensor in shown):
            positions = ", and the positions certainly differ" if any(row[-1] for row in rows) else ""
            say(f"all that differs is among the elements{positions}", label="note")
        verb = "is" if answer.equal == 1 else "are"
        alone = f"{answer.only_in_a} in A alone, {answer.only_in_b} in B alone"
        say(f"{counted(answer.equal, 'tensor')} {verb} equal, {alone}", label="note")
    if answer.tensors:
        raise typer.Exit(EXIT_DIFFERENT)


def _ranges_text(ranges: tuple[DifferingRange, ...]) -> str:
    texts = [f"{list(part.first)} to {list(part.last)}" for part in ranges[:_SHOWN]]
    more = len(ranges) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def _positions_text(along: DifferingPositions) -> str:
    runs = [str(begin) if end == begin + 1 else f"{begin}-{end - 1}" for begin, end in along.runs[:_SHOWN]]
    more = len(along.runs) - len(runs)
    text = ", ".join(runs) or "no position by more than rounding"
    return f"axis {along.axis}: {text}" + (f", and {more} more" if more else "")
