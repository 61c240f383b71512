"""What `dump-ingest show` prints of a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ingest
from ingest.cli.fitting import GAP, cell_widths
from ingest.cli.printing import (
    is_terminal,
    print_json,
    print_line,
    print_table,
    print_text,
    print_wrapped,
    terminal_width,
)
from ingest.reader.text import number_text, shape_text

if TYPE_CHECKING:
    from ingest.reader.context import Frame

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


def print_context(context: ingest.Context, tensor: ingest.Tensor, *, whole_stack: bool) -> None:
    """Print what is known about the operator, without lines for what is not known."""
    line = context.source_line(tensor)
    match = context.match(tensor)
    if match is not None and match.name is None:
        print_field("operator", "one of " + ", ".join(match.names) + (", ..." * (not match.is_whole)))
    if line is not None:
        print_field("source_line", _line_text(line))
        if whole_stack:
            _print_stack(line.stack)
    if (parent := context.parent(tensor)) is not None:
        print_field("parent", parent)
    if originals := context.original_names(tensor):
        print_field("fused_from", ", ".join(originals))
    for name, value in (context.kernel_args(tensor) or {}).items():
        print_field("kernel_args", f"{name}: {value}")


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
        print_field("", f"{frame.file}:{frame.line}{function}  {frame.code}")


def print_field(field: str, text: str) -> None:
    """Print one line."""
    print_wrapped(f"{field:16} {text}", indent=17)


def print_fields(tensor: ingest.Tensor, sample: int) -> None:
    """Print what the index has of a tensor, without lines for what says nothing: `--json` has all.

    Args:
        tensor: the tensor.
        sample: how many elements of its beginning and its end were dumped; 0 for all.
    """
    if sample:
        print_field("sample", f"the first and the last {sample} elements: statistics are about these")
    row = tensor.to_dict()
    for field, value in row.items():
        if field not in _IN_THE_NAME and not _says_nothing(field, value, row):
            print_field(field, number_text(value) if isinstance(value, float) else str(value))


def _says_nothing(field: str, value: Any, row: Mapping[str, Any]) -> bool:
    """Return whether a field is unknown, what it is nearly always, or what another one tells."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return True
    if field == "declared_dtype":
        return str(value).lower() == str(row["dtype"])
    if field == "nan_count":
        return False  # that there is none is worth a line
    return (field.endswith("_count") and not value) or _USUAL.get(field) == value


def print_neighbours(tensor: ingest.Tensor) -> None:
    """Print who wrote what a tensor holds, and who read it."""
    for label, neighbours in (("written_by", tensor.producers), ("read_by", tensor.consumers)):
        for neighbour in neighbours[:_MAX_NEIGHBOURS]:
            print_field(label, f"{neighbour.tensor.name}{_parts(neighbour)}{_doubt(neighbour)}")
        if rest := len(neighbours[_MAX_NEIGHBOURS:]):
            print_field(label, f"... and {rest} more (--json: all)")


def _parts(neighbour: ingest.Neighbour) -> str:
    return f"  (fused from {', '.join(neighbour.fused_from)})" if neighbour.fused_from else ""


def _doubt(neighbour: ingest.Neighbour) -> str:
    if neighbour.by == "graph":
        return "  (by the graph; it holds other bytes)"
    return "" if neighbour.is_certain else "  (equal constants: may be by chance)"


def print_anatomy(anatomy: ingest.Anatomy) -> None:
    """Print where NaN and infinities lie, percentiles and a histogram."""
    if anatomy.first:
        print_text()
        total = anatomy.nan + anatomy.pos_inf + anatomy.neg_inf
        places = ", ".join(f"{_index_text(element.index)} {element.value}" for element in anatomy.first)
        more = ", ..." * (total > len(anatomy.first))
        print_field("not finite", f"{total} of {anatomy.elements}: {places}{more}")
        for axis in anatomy.axes:
            worst = ", ".join(f"{position} ({count})" for position, count in axis.worst[:5])
            more = ", ..." * (axis.affected > 5)
            print_field(f"  axis {axis.axis}", f"{axis.affected} of {axis.length} positions: {worst}{more}")
    if anatomy.percentiles:
        print_text()
        print_field(
            "percentiles",
            "  ".join(f"{percent:g}%={number_text(value)}" for percent, value in anatomy.percentiles.items()),
        )
    if anatomy.counts:
        print_text()
        _print_histogram(anatomy)


def _print_histogram(anatomy: ingest.Anatomy) -> None:
    most = max(anatomy.counts)
    numbers = ("from", "to", "elements")
    rows = [
        (number_text(low), number_text(high), str(count))
        for low, high, count in zip(anatomy.edges, anatomy.edges[1:], anatomy.counts, strict=False)
    ]
    room = terminal_width() - sum(width + GAP for width in cell_widths(numbers, rows))
    longest = min(max(room, _MIN_BAR), _BAR) if is_terminal() else _BAR
    bars = ["█" * math.ceil(count / most * longest) for count in anatomy.counts]
    print_table((*numbers, ""), [(*row, bar) for row, bar in zip(rows, bars, strict=True)], right=numbers)


def _index_text(index: Sequence[int]) -> str:
    return f"[{', '.join(map(str, index))}]"


def preview(tensor: ingest.Tensor) -> str:
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
    first, last = tensor.edges(_EDGE)
    return f"[{_joined(first)} ... {_joined(last)}]  ({math.prod(tensor.shape)} elements, flat)"


def _line_width() -> int:
    return min(_VALUES, terminal_width()) if is_terminal() else _VALUES


def _joined(values: Any) -> str:
    return " ".join(str(value) for value in values)


def print_slice(values: Any, at: str) -> None:
    """Print all values of a slice, up to the most that JSON would have, too."""
    # deferred: numpy takes 0.1 s to import
    import numpy as np

    from ingest.reader.shown import MAX_SLICE_VALUES, check_slice

    check_slice(values, at)
    print_line(f"[{at}]  {shape_text(np.shape(values))}")
    with np.printoptions(threshold=MAX_SLICE_VALUES + 1, linewidth=_line_width()):
        print_text(str(values))


def print_window(tensor: ingest.Tensor, text: str, *, json: bool) -> None:
    """Print a window on the values of a tensor as a table.

    Raises:
        UsageError: it is not a window of the tensor.
    """
    from ingest.page.sheet import parse_window  # deferred: numpy takes 0.1 s to import

    window = ingest.window(tensor, *parse_window(text, tensor.shape))
    if json:
        print_json(window)
        return
    lines = zip(window["rows"], window["values"], strict=True)
    columns = window["columns"]
    print_table(("", *columns), ((f"[{row}]", *values) for row, values in lines), right=columns)
