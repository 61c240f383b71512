"""What sketches tell of a tensor: also of one that is large, or whose elements were removed."""

from __future__ import annotations

import glob
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup

from ingest.page.drawing.exponents import ExponentCounts, exponents_picture
from ingest.page.screen import AnswerLine, Asked
from ingest.questions.outliers import OddPositions, OutliersAnswer, outliers
from ingest.questions.precision import FormatLosses, PrecisionAnswer, precision
from ingest.reader.ranges import format_ranges
from ingest.reader.tensor import Tensor
from workers.arrays.sketches.histogram import Histogram
from workers.errors import DamagedStore, UsageError
from workers.store.sketches.marginals import arrays_of

#: Odd positions that are listed.
_LISTED = 12
_Answer = TypeVar("_Answer", PrecisionAnswer, OutliersAnswer)


@dataclass(frozen=True, slots=True)
class ShownSketches:
    """What the sketches of one tensor tell."""

    exponents: Markup | None = None
    """Of its histogram."""
    zeros: int = 0
    losses: tuple[FormatLosses, ...] = ()
    """What other formats would lose; empty without a histogram."""
    odd: tuple[OddPositions, ...] = ()
    """Channels that stand out, are dead or saturated; the worst first."""
    has_marginals: bool = False
    more_odd: int = 0
    """How many of these are not listed."""
    lines: tuple[AnswerLine, ...] = ()
    """Those that give the same answers."""

    @staticmethod
    def positions(odd: OddPositions) -> str:
        """Return the places along the axis as people write them."""
        return format_ranges(odd.positions)


def sketches_of(asked: Asked, tensor: Tensor) -> ShownSketches:
    """Return the contents of a tensor's sketches; empty if its step was committed without them."""
    if tensor.step is None:
        return ShownSketches()
    histogram = _histogram(tensor)
    exponents, zeros = _exponents(tensor, histogram)
    # Each of them reads the index and the names of all tensors, so neither is asked for nothing.
    losses = None if histogram is None else _answered(precision, asked, tensor)
    nodes = asked.moment.store.step(tensor.rank, tensor.step).commit.nodes
    odd = _answered(outliers, asked, tensor) if arrays_of(nodes) else None
    positions = () if odd is None else odd.positions
    has_marginals = odd is not None and odd.looked_at > 0
    asked_too = [*["precision"] * bool(losses and losses.rows), *["outliers"] * has_marginals]
    return ShownSketches(
        exponents,
        zeros,
        () if losses is None else losses.rows,
        positions[:_LISTED],
        has_marginals,
        max(len(positions) - _LISTED, 0),
        tuple(_line(asked, tensor, question) for question in asked_too),
    )


def _answered(ask: Callable[..., _Answer], asked: Asked, tensor: Tensor) -> _Answer | None:
    """Return the answer of a question over sketches for one tensor; None if it has no such sketch."""
    try:
        return ask(
            asked.moment.store,
            glob.escape(tensor.name),
            rank=tensor.rank,
            step=tensor.step,
            include_partial=True,
            **({"graph": tensor.graph} if tensor.graph else {}),
        )
    except (UsageError, DamagedStore):
        return None


def _line(asked: Asked, tensor: Tensor, question: str) -> AnswerLine:
    """Return the line that asks a question over sketches of one tensor; see `_answered`."""
    pattern, graph = glob.escape(tensor.name), ("--graph", tensor.graph) if tensor.graph else ()
    place = ("--rank", tensor.rank, "--step", tensor.step, "--include-partial")
    given = f"rank={tensor.rank}, step={tensor.step}, include_partial=True"
    given += f", graph={tensor.graph!r}" if tensor.graph else ""
    return AnswerLine.of(
        (question, asked.url, pattern, *place, *graph), f"ingest.{question}(store, {pattern!r}, {given})"
    )


def _histogram(tensor: Tensor) -> Histogram | None:
    try:
        return tensor.histogram
    except DamagedStore:
        return None  # `verify` names the damage


def _exponents(tensor: Tensor, histogram: Histogram | None) -> tuple[Markup | None, int]:
    counts = None if histogram is None else ExponentCounts.of_histogram(histogram)
    if counts is None:
        return None, 0
    return exponents_picture(counts, f"Signs and binary exponents of {tensor.name}"), counts.zeros
