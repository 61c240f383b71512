"""What the questions about sketches print: shares with bounds, percentiles, and what has no histogram."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ingest.cli.printing import say, short_name
from ingest.reader.text import counted, number_text

if TYPE_CHECKING:  # they import numpy, and --help needs none of it
    from ingest.questions.precision import TensorPrecision
    from ingest.questions.quantiles import TensorQuantiles


def precision_row(tensor: TensorPrecision) -> tuple[str, ...]:
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


def quantiles_columns(tensors: Sequence[TensorQuantiles]) -> tuple[str, ...]:
    """Return the headings for the percentiles of some tensors."""
    percents = tensors[0].percentiles if tensors else ()
    return ("rank", "step", "name", *(f"p{percent:g}" for percent in percents))


def spare_quantiles(percents: Iterable[float]) -> list[str]:
    """Return the headings of percentiles that may be left out: last those next to extremes and the median."""

    def remoteness(percent: float) -> float:
        return min(percent, abs(percent - 50), 100 - percent)

    return [f"p{percent:g}" for percent in sorted(percents, key=remoteness, reverse=True)]


def quantiles_row(tensor: TensorQuantiles) -> tuple[str, ...]:
    """Return the cells of one tensor."""
    cells = (
        number_text(bounds.low)
        if bounds.is_exact or math.isnan(bounds.low)
        else f"{number_text(bounds.low)}..{number_text(bounds.high)}"
        for bounds in tensor.percentiles.values()
    )
    return str(tensor.rank), str(tensor.step), short_name(tensor.name), *cells


def say_without(without: int) -> None:
    """Print to stderr how many of the chosen tensors have no histogram, if any."""
    if without:
        say(
            f"{counted(without, 'tensor')} without a histogram: `dump-ingest sketch STORE` adds them while "
            "the elements are there",
            label="left out",
        )
