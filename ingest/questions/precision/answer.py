"""The answer about precision, as values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ingest.reader.snapshot import LeftOut
from ingest.reader.table_answer import TableAnswer
from workers.arrays.sketches.histogram import Bounds

EXACT, BOUNDED, ESTIMATED = "exact", "bounded", "estimated"


@dataclass(frozen=True, slots=True)
class FormatLosses:
    """What a cast of one tensor, of one step and rank, to one format would lose."""

    rank: int
    step: int
    name: str
    net: str
    graph: str
    dtype: str
    format: str
    scale: float
    """By what the tensor is multiplied before the cast; NaN if each block has its own."""
    elements: int
    largest: float
    """The largest magnitude; 0 if no element is finite."""
    overflow: Bounds
    """How many finite elements become infinite or NaN, or are cut off."""
    underflow: Bounds
    """How many elements other than zero become zero."""
    headroom_bits: float
    """How often the tensor may double until it overflows; NaN if it has no element but zeros."""

    @property
    def exactness(self) -> str:
        """`exact` or `bounded`."""
        return EXACT if self.overflow.is_exact and self.underflow.is_exact else BOUNDED

    @property
    def badness(self) -> tuple[float, float]:
        """The shares of overflow and underflow at worst, to compare by."""
        return self.share(self.overflow.high), self.share(self.underflow.high)

    def share(self, count: float) -> float:
        """Return a count as a share of all elements."""
        return count / self.elements if self.elements else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; shares instead of counts."""
        return {
            "rank": self.rank,
            "step": self.step,
            "name": self.name,
            "net": self.net,
            "graph": self.graph,
            "dtype": self.dtype,
            "format": self.format,
            "scale": self.scale,
            "elements": self.elements,
            "largest": self.largest,
            "overflow_low": self.share(self.overflow.low),
            "overflow_high": self.share(self.overflow.high),
            "underflow_low": self.share(self.underflow.low),
            "underflow_high": self.share(self.underflow.high),
            "headroom_bits": self.headroom_bits,
            "exactness": self.exactness,
        }


@dataclass(frozen=True, slots=True)
class TensorPrecision:
    """One tensor in one format, over all steps and ranks."""

    worst: FormatLosses
    """That of the step and rank which loses most."""
    first_step: int | None
    """The first step in which anything may be lost; None if nothing is lost in any."""
    ranks: tuple[int, ...]
    """The ranks that may lose anything in any step."""
    headroom_bits: float
    """In the last step, of the rank that has least; NaN if it is not known."""
    bits_per_step: float
    """How the largest magnitude grows, in powers of two for each step; NaN if there are too few steps."""
    overflows_at: int | None
    """The step in which the growth, if it goes on, exceeds the range: an estimate. None if it does not."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **self.worst.to_dict(),
            "first_step": self.first_step,
            "ranks": list(self.ranks),
            "last_headroom_bits": self.headroom_bits,
            "bits_per_step": self.bits_per_step,
            "overflows_at": self.overflows_at,
            "overflows_at_exactness": "" if self.overflows_at is None else ESTIMATED,
        }


@dataclass(frozen=True, slots=True, repr=False)
class PrecisionAnswer(TableAnswer):
    """Which tensors would lose what in which format."""

    noun: ClassVar = "cast"
    shown: ClassVar = (
        "format",
        "name",
        "rank",
        "step",
        "overflow_low",
        "overflow_high",
        "underflow_low",
        "underflow_high",
        "last_headroom_bits",
        "overflows_at",
    )

    store: str
    scaling: str
    powers_of_two: bool
    formats: tuple[str, ...]
    tensors: tuple[TensorPrecision, ...]
    """One for each tensor and format, the worst first."""
    rows: tuple[FormatLosses, ...]
    """One for each tensor, rank, step and format, by step, rank and order of execution."""
    without: int
    """How many of the chosen tensors, counted in each step and rank, have no histogram."""
    left_out: tuple[LeftOut, ...] = ()
    """Steps that the answer is not about, and why."""

    def to_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """Return plain values; `rows`: also those of each step and rank."""
        return {
            "store": self.store,
            "scaling": self.scaling,
            "powers_of_two": self.powers_of_two,
            "formats": list(self.formats),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            **({"rows": [row.to_dict() for row in self.rows]} if rows else {}),
            "without": self.without,
            "left_out": [left.to_dict() for left in self.left_out],
        }

    def rows_of_table(self) -> list[dict[str, Any]]:
        """Return a row for each tensor and format."""
        return [tensor.to_dict() for tensor in self.tensors]


def trend_of(steps: Sequence[int], bits: Sequence[float], limit_bits: float) -> tuple[float, int | None]:
    """Return how the largest magnitude grows, and the step in which it would exceed a limit.

    Fits a line by least squares to the powers of two.

    Args:
        steps: at least three, else nothing is known.
        bits: by step, log2 of the largest magnitude.
        limit_bits: log2 of the largest number of the format.

    Returns:
        Powers of two for each step, NaN if unknown; and the first step beyond the limit, None if the line
        does not get there within ten times the steps that it is fitted to, or is there already.
    """
    n = len(steps)
    if n < _LEAST_STEPS:
        return math.nan, None
    mean_step, mean_bits = sum(steps) / n, sum(bits) / n
    squares = sum((step - mean_step) ** 2 for step in steps)
    slope = sum((s - mean_step) * (b - mean_bits) for s, b in zip(steps, bits, strict=True)) / squares
    rest = limit_bits - bits[-1]
    if slope <= 0 or rest < 0 or rest / slope > _REACH * (steps[-1] - steps[0]):
        return slope, None
    crossing = mean_step + (limit_bits - mean_bits) / slope
    return slope, max(math.floor(crossing) + 1, steps[-1] + 1)


_LEAST_STEPS = 3
#: How far beyond the known steps a trend is followed, in multiples of their range.
_REACH = 10
