"""`dump-ingest outliers`: channels and rows of tensors that stand out, are dead, or are saturated."""

from __future__ import annotations

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
from ingest.cli.printing import limited, print_json, print_table, say, say_rest, short_name
from ingest.cli.tensor_options import Conditions, takes_tensor_options
from ingest.reader.text import counted, number_text

if TYPE_CHECKING:  # it imports numpy, and --help needs none of it
    from ingest.questions.outliers import OddPositions

_COLUMNS = (
    *("kind", "axis", "position", "times", "value", "known", "rank", "step", "since", "steps", "ranks"),
    "name",
)
_RIGHT = ("axis", "times", "value", "rank", "step", "since", "steps")


@takes_tensor_options
def command(
    store: StoreArgument = None,
    pattern: PatternArgument = None,
    by: Annotated[
        str, typer.Option(metavar="MEASURE", help="What positions are compared by: abs_max or l2_norm.")
    ] = "abs_max",
    factor: Annotated[
        float, typer.Option(help="How many times the median over its axis an outlier exceeds.")
    ] = 10.0,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Only these: outlier, dead or saturated; may be repeated. Default: all.",
        ),
    ] = None,
    rank: RanksOption = None,
    step: StepOption = None,
    *,
    chosen: Conditions,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many lines; 0: all.")] = 50,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Name the channels and rows of tensors that stand out, are dead, or are saturated.

    From sums, norms and largest magnitudes along the axes of tensors, so also after [bold]gc[/]. An outlier
    is [bold]times[/] the median over its axis, a dead position has only zeros, and all elements of a
    saturated one have nearly the same magnitude. [bold]since[/] is the first step in which it is so,
    [bold]known[/] how far the value may be from the truth, as a share of it.

    [bold]dump-ingest outliers run.zarr --role activation --factor 20[/]
    """
    answer = ingest.outliers(
        open_store(store, config),
        pattern,
        by=by,
        factor=factor,
        kinds=kinds,
        rank=rank,
        step=step,
        include_partial=include_partial,
        **chosen,
    )
    if json:
        print_json(answer.to_dict())
    else:
        shown = limited(answer.positions, limit)
        if shown:
            print_table(_COLUMNS, map(_row, shown), right=_RIGHT)
        elif answer.looked_at:
            say(f"nothing unusual in {counted(answer.looked_at, 'tensor')}", label="note")
        say_rest(len(answer.positions), len(shown), "lines")
        if answer.too_small:
            too_small = counted(answer.too_small, "tensor")
            say(f"{too_small} not examined: too small, not of floats, or all zeros", label="note")
    if answer.without:
        say(
            f"{counted(answer.without, 'tensor')} without marginals (see `dump-ingest sketch`)",
            label="left out",
        )
    report_left_out(answer.left_out)


def _row(odd: OddPositions) -> tuple[str, ...]:
    from ingest.reader.ranges import format_ranges  # deferred: --help needs none of it

    places = format_ranges(odd.positions) if len(odd.positions) > 1 else str(odd.positions[0])
    return (
        odd.kind,
        str(odd.axis),
        places if len(places) <= 24 else f"{len(odd.positions)} positions",
        f"{odd.ratio:.3g}" if odd.kind == "outlier" else "",
        number_text(odd.value) if odd.kind != "dead" else "",
        f"±{odd.error:.1g}" if odd.error else odd.exactness,
        str(odd.rank),
        str(odd.step),
        str(odd.first_step),
        f"{odd.steps} of {odd.of_steps}",
        format_ranges(odd.ranks),
        short_name(odd.name),
    )
