"""`dump-ingest precision`: which tensors would overflow or underflow in other formats of numbers."""

from __future__ import annotations

import math
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
    say,
    say_rest,
    say_without_histogram,
    short_name,
)
from ingest.cli.tensor_options import Conditions, takes_tensor_options

if TYPE_CHECKING:  # it imports numpy, and --help needs none of it
    from ingest.questions.precision import TensorPrecision

_COLUMNS = ("format", "overflow", "underflow", "rank", "step", "headroom", "per step", "overflows", "name")
_RIGHT = ("overflow", "underflow", "rank", "step", "headroom", "per step", "overflows")


@takes_tensor_options
def command(
    store: StoreArgument = None,
    pattern: PatternArgument = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="A format: float16, bfloat16, e4m3, e5m2, mxfp8, nvfp4, or bits and bias: e5m7, e4m3b11; "
            "may be repeated. Default: these six.",
            show_default=False,
        ),
    ] = None,
    scaling: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="What tensors are multiplied by before the cast: none, current or delayed."
        ),
    ] = "none",
    powers_of_two: Annotated[
        bool, typer.Option("--powers-of-two", help="Round scales down to powers of two: exact answers.")
    ] = False,
    rank: RanksOption = None,
    step: StepOption = None,
    *,
    chosen: Conditions,
    rows: Annotated[
        bool, typer.Option("--rows", help="With --json: also each step and rank, not only the worst.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many tensors; 0: all.")] = 50,
    include_partial: PartialOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Name the tensors that would overflow or underflow in float16, float8, ...: the worst first.

    Shares of all elements, in the step and rank that lose most. From histograms, so also after [bold]gc[/].
    [bold]<[/] is an upper bound, [bold]headroom[/] how often the tensor may double until it overflows,
    [bold]overflows[/] the step in which its growth would end that.

    [bold]dump-ingest precision run.zarr --role gradient --format e5m2[/]
    [bold]dump-ingest precision run.zarr '*Adam*' --format e4m3 --scaling delayed --powers-of-two[/]
    """
    answer = ingest.precision(
        open_store(store, config),
        pattern,
        formats,
        scaling=scaling,
        powers_of_two=powers_of_two,
        rank=rank,
        step=step,
        include_partial=include_partial,
        **chosen,
    )
    if json:
        print_json(answer.to_dict(rows=rows))
    else:
        lossy = [tensor for tensor in answer.tensors if tensor.first_step is not None]
        foreseen = [tensor for tensor in answer.tensors if tensor.overflows_at is not None]
        named = [*lossy, *(tensor for tensor in foreseen if tensor.first_step is None)]
        shown = limited(named, limit)
        if shown:
            print_table(_COLUMNS, map(_row, shown), right=_RIGHT)
        else:
            told = " that has a histogram" if answer.without else ""
            say(f"no tensor{told} would lose anything", label="note")
        say_rest(len(named), len(shown), "tensors and formats")
    say_without_histogram(answer.without)
    report_left_out(answer.left_out)


def _row(tensor: TensorPrecision) -> tuple[str, ...]:
    """Return the cells of one tensor and format."""
    worst = tensor.worst
    return (
        worst.format,
        share_text(worst.share(worst.overflow.low), worst.share(worst.overflow.high)),
        share_text(worst.share(worst.underflow.low), worst.share(worst.underflow.high)),
        str(worst.rank),
        str(worst.step),
        _bits(tensor.headroom_bits),
        _bits(tensor.bits_per_step),
        "" if tensor.overflows_at is None else f"~{tensor.overflows_at}",
        short_name(worst.name),
    )


def share_text(low: float, high: float) -> str:
    """Return a share as a percentage: exact, an upper bound, or a range."""
    if low == high:
        return _percent(high) if high else "0"
    return f"<{_percent(high)}" if not low else f"{_percent(low)}..{_percent(high)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _bits(bits: float) -> str:
    return "-" if math.isnan(bits) else f"{bits:z.1f}"
