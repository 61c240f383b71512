"""The answer about outliers, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ingest.reader.snapshot import LeftOut
from ingest.reader.table_answer import TableAnswer

OUTLIER, DEAD, SATURATED = KINDS = ("outlier", "dead", "saturated")


@dataclass(frozen=True, slots=True)
class OddPositions:
    """Positions along an axis of a tensor that are odd in the same way, steps and ranks."""

    kind: str
    """`outlier`, `dead` or `saturated`; see `workers.arrays.sketches.channels`."""
    name: str
    net: str
    graph: str
    dtype: str
    shape: tuple[int, ...]
    axis: int
    positions: tuple[int, ...]
    """Places along the axis, in order; one for an outlier."""
    value: float
    """By what positions are compared: that of the worst one, in the rank and step where it is worst."""
    median: float
    """Of the positions there; NaN unless it is an outlier."""
    rank: int
    """Where it is worst."""
    step: int
    """Where it is worst."""
    first_step: int
    last_step: int
    steps: int
    """In how many steps it is so, on any rank."""
    of_steps: int
    """In how many steps the marginals of the tensor are known."""
    ranks: tuple[int, ...]
    exactness: str
    """`exact`, or `bounded` by `error` if what it is compared by is rounded to float32."""
    error: float = 0.0
    """How far `value`, and `median`, may be from the truth, as a share of it: 0 if it is exact."""

    @property
    def ratio(self) -> float:
        """How many times the median it is; NaN unless it is an outlier."""
        return self.value / self.median

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "kind": self.kind,
            "name": self.name,
            "net": self.net,
            "graph": self.graph,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "axis": self.axis,
            "positions": list(self.positions),
            "value": self.value,
            "median": self.median,
            "ratio": self.ratio,
            "rank": self.rank,
            "step": self.step,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "steps": self.steps,
            "of_steps": self.of_steps,
            "ranks": list(self.ranks),
            "exactness": self.exactness,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, repr=False)
class OutliersAnswer(TableAnswer):
    """What is odd along the axes of tensors."""

    noun: ClassVar = "place"
    shown: ClassVar = (
        "kind",
        "name",
        "axis",
        "positions",
        "value",
        "ratio",
        "rank",
        "step",
        "first_step",
        "ranks",
    )

    store: str
    by: str
    factor: float
    positions: tuple[OddPositions, ...]
    """Outliers by ratio, then dead and saturated ones by number: the worst first."""
    looked_at: int
    """Tensors whose marginals are known, counted in each step and rank."""
    too_small: int
    """How many others are too small to have marginals, are of another type, or hold only zeros."""
    without: int
    """How many others lack marginals, because their steps were committed without them."""
    left_out: tuple[LeftOut, ...] = ()
    """Steps that the answer is not about, and why."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "store": self.store,
            "by": self.by,
            "factor": self.factor,
            "positions": [odd.to_dict() for odd in self.positions],
            "looked_at": self.looked_at,
            "too_small": self.too_small,
            "without": self.without,
            "left_out": [left.to_dict() for left in self.left_out],
        }

    def rows_of_table(self) -> list[dict[str, Any]]:
        """Return a row for each position, or several that are odd in the same way."""
        return [odd.to_dict() for odd in self.positions]
