"""What sketches tell of a tensor: also of one that is large, or whose elements were removed."""

from __future__ import annotations

import glob
from dataclasses import dataclass

from markupsafe import Markup

from ingest.page.drawing.exponents import ExponentCounts, exponents_picture
from ingest.page.screen import Asked
from ingest.page.words import command
from ingest.questions.outliers import OddPositions, outliers
from ingest.questions.precision import FormatLosses, precision
from ingest.reader.ranges import format_ranges
from ingest.reader.tensor import Tensor
from ingest.reader.tensor_filter import FilterFields
from workers.errors import DamagedStore, UsageError

#: Odd positions that are listed.
_LISTED = 12


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
    commands: tuple[str, ...] = ()
    """The commands that answer the same."""

    @staticmethod
    def positions(odd: OddPositions) -> str:
        """Return the places along the axis as people write them."""
        return format_ranges(odd.positions)


def sketches_of(asked: Asked, tensor: Tensor) -> ShownSketches:
    """Return what the sketches of a tensor tell; nothing if its step was committed without them."""
    if tensor.step is None:
        return ShownSketches()
    exponents, zeros = _exponents(tensor)
    losses = _losses(asked, tensor)
    odd = _odd(asked, tensor)
    place = ("--rank", tensor.rank, "--step", tensor.step)
    questions = [*["precision"] * bool(losses), *["outliers"] * (odd is not None)]
    return ShownSketches(
        exponents,
        zeros,
        losses,
        (odd or ())[:_LISTED],
        odd is not None,
        max(len(odd or ()) - _LISTED, 0),
        tuple(command(question, asked.url, _pattern(tensor), *place) for question in questions),
    )


def _pattern(tensor: Tensor) -> str:
    return glob.escape(tensor.name)


def _graph(tensor: Tensor) -> FilterFields:
    """Return the condition that tells tensors of one name in several graphs apart."""
    return {"graph": tensor.graph} if tensor.graph else {}


def _exponents(tensor: Tensor) -> tuple[Markup | None, int]:
    try:
        histogram = tensor.histogram
    except DamagedStore:
        return None, 0  # `verify` names the damage
    counts = None if histogram is None else ExponentCounts.of_histogram(histogram)
    if counts is None:
        return None, 0
    return exponents_picture(counts, f"Signs and binary exponents of {tensor.name}"), counts.zeros


def _losses(asked: Asked, tensor: Tensor) -> tuple[FormatLosses, ...]:
    try:
        answer = precision(
            asked.moment.store,
            _pattern(tensor),
            rank=tensor.rank,
            step=tensor.step,
            include_partial=True,
            **_graph(tensor),
        )
    except (UsageError, DamagedStore):
        return ()
    return answer.rows


def _odd(asked: Asked, tensor: Tensor) -> tuple[OddPositions, ...] | None:
    """Return the odd positions; None if the tensor has no marginals."""
    try:
        answer = outliers(
            asked.moment.store,
            _pattern(tensor),
            rank=tensor.rank,
            step=tensor.step,
            include_partial=True,
            **_graph(tensor),
        )
    except (UsageError, DamagedStore):
        return None
    return answer.positions if answer.looked_at else None
