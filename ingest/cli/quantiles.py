"""`dump-ingest quantiles`: percentiles of tensors."""

from __future__ import annotations

from typing import Annotated

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
from ingest.cli.printing import limited, print_json, print_table, say_rest
from ingest.cli.sketch_report import quantiles_columns, quantiles_row, say_without, spare_quantiles
from ingest.cli.tensor_options import Conditions, takes_tensor_options


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
        columns = quantiles_columns(shown)
        spare = spare_quantiles(shown[0].percentiles) if shown else ()
        print_table(columns, map(quantiles_row, shown), right=columns[:2] + columns[3:], spare=spare)
        say_rest(len(answer.tensors), len(shown), "tensors")
    say_without(answer.without)
    report_left_out(answer.left_out)
