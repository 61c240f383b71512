"""What is in one tensor, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NonFinite:
    """One element that is NaN or infinite."""

    index: tuple[int, ...]
    value: str
    """`NaN`, `Inf` or `-Inf`; of a complex number, `NaN` if any part is."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"index": list(self.index), "value": self.value}


@dataclass(frozen=True, slots=True)
class AxisCounts:
    """At which positions of one axis the elements that are not finite lie."""

    axis: int
    length: int
    affected: int
    """The number of positions with at least one such element."""
    worst: tuple[tuple[int, int], ...]
    """The ten positions with the most such elements, and how many of them: most first, then by position."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        worst = [{"position": position, "count": count} for position, count in self.worst]
        return {"axis": self.axis, "length": self.length, "affected": self.affected, "worst": worst}


@dataclass(frozen=True, slots=True)
class Anatomy:
    """What is in one tensor."""

    elements: int
    nan: int
    pos_inf: int
    neg_inf: int
    first: tuple[NonFinite, ...]
    """The first of the elements that are NaN or infinite, in the order of the dump."""
    axes: tuple[AxisCounts, ...]
    """By axis, where those elements lie; empty if there are none. Axes over a million positions are left
    out."""
    percentiles: dict[float, float]
    """By percentage: the percentile of the finite elements, as `numpy.percentile` defines it, exactly.

    Empty for complex numbers, text, types that nothing decodes, and without a finite element.
    """
    edges: tuple[float, ...]
    """The limits of the bins of the histogram, one more than bins; empty as `percentiles`."""
    counts: tuple[int, ...]
    """How many finite elements each bin of the histogram has. The last bin includes its upper limit."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "elements": self.elements,
            "nan": self.nan,
            "pos_inf": self.pos_inf,
            "neg_inf": self.neg_inf,
            "first_non_finite": [element.to_dict() for element in self.first],
            "axes": [axis.to_dict() for axis in self.axes],
            "percentiles": {f"{percent:g}": value for percent, value in self.percentiles.items()},
            "histogram": {"edges": list(self.edges), "counts": list(self.counts)},
        }
