"""`dump-ingest quantiles`: percentiles of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import ingest
from ingest.cli.exits import report_left_out
from ingest.cli.opening import open_store
from ingest.cli.options import (
    ConfigOption,
    JsonOption,
    PartialOption,
    PatternArgument,
    RanksOption,
    StepOption,
    StoreArgument,
)
from ingest.cli.printing import (
    limited,
    print_json,
    print_table,
    say_rest,
    say_without_histogram,
    short_name,
)
from ingest.cli.tensor_options import Conditions, takes_tensor_options
from ingest.reader.text import number_text, percentile_name

if TYPE_CHECKING:  # it imports numpy, and --help needs none of it
    from ingest.questions.quantiles import TensorQuantiles


@takes_tensor_options
def command(
    store: StoreArgument = None,
    pattern: PatternArgument = None,
    percents: Annotated[
        list[float] | None,
        typer.Option(
            "--percent",
            "-p",
            metavar="P",
            help="A percentile, 0 to 100; may be repeated. Default: 0, 1, 5, 25, 50, 75, 95, 99, 99.9, 100.",
            show_default=False,
        ),
    ] = None,
    magnitude: Annotated[
        bool, typer.Option("--magnitude", help="Of the magnitudes, without the sign.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Read the elements of tensors that the store still has.")
    ] = False,
    rank: RanksOption = None,
    step: StepOption = None,
    *,
    chosen: Conditions,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many tensors; 0: all.")] = 50,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show percentiles of the finite elements of tensors, also after their elements are gone.

    From histograms: [bold]a..b[/] says that a percentile lies between these, which differ by at most a factor
    of two. The smallest and largest element are exact; [bold]--exact[/] reads the others.

    [bold]dump-ingest quantiles run.zarr 'MatMul.*' --step 40 -p 50 -p 99.9 --magnitude[/]
    """
    answer = ingest.quantiles(
        open_store(store, config),
        pattern,
        percents,
        magnitude=magnitude,
        exact=exact,
        rank=rank,
        step=step,
        include_partial=include_partial,
        **chosen,
    )
    if json:
        print_json(answer.to_dict())
    else:
        shown = limited(answer.tensors, limit)
        columns = columns_of(shown)
        spare = spare_columns(shown[0].percentiles) if shown else ()
        print_table(columns, map(row_of, shown), right=columns[:2] + columns[3:], spare=spare)
        say_rest(len(answer.tensors), len(shown), "tensors")
    say_without_histogram(answer.without)
    report_left_out(answer.left_out)


def columns_of(tensors: Sequence[TensorQuantiles]) -> tuple[str, ...]:
    """Return the headings for the percentiles of some tensors."""
    percents = tensors[0].percentiles if tensors else ()
    return ("rank", "step", "name", *map(percentile_name, percents))


def row_of(tensor: TensorQuantiles) -> tuple[str, ...]:
    """Return the cells of one tensor."""
    cells = (
        number_text(bounds.low)
        if bounds.is_exact or math.isnan(bounds.low)
        else f"{number_text(bounds.low)}..{number_text(bounds.high)}"
        for bounds in tensor.percentiles.values()
    )
    return str(tensor.rank), str(tensor.step), short_name(tensor.name), *cells


def spare_columns(percents: Iterable[float]) -> list[str]:
    """Return the headings of percentiles that may be left out: last those next to extremes and the median."""

    def remoteness(percent: float) -> float:
        return min(percent, abs(percent - 50), 100 - percent)

    return list(map(percentile_name, sorted(percents, key=remoteness, reverse=True)))
