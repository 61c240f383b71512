"""How much rounding may make two correct runs differ: the arithmetic of limits.

A result is rounded to its type, and what was added up for it was rounded at each addition. With n addends in
another order, the relative error grows as the square root of n times the unit roundoff (N. J. Higham and
T. Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41, 2019). So two
correct runs differ in one operator by about

    SAFETY * (u_stored + sqrt(n) * u_accumulated)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from ingest.identities.limits import unit_of
from workers.arrays.comparison import Metrics
from workers.store.strict_json import finite_or_none

#: The probability that a sum of a million addends exceeds this many times the expected error is negligible.
SAFETY = 4.0


@dataclass(frozen=True, slots=True)
class RoundingBound:
    """How the difference of a tensor compares with what rounding explains."""

    limit: float
    """The relative Euclidean distance that rounding and what the operator read explain."""
    times: float
    """How many times the limit the distance is; infinite if types are exact."""
    explained: bool
    """Whether rounding, or what was executed before, explains the distance."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return dict(finite_or_none(asdict(self)))


def relative_difference(metrics: Metrics | None) -> float:
    """Return |a - b| / |b|; 0 without metrics; infinite if NaN or Inf are not in the same places."""
    if metrics is None or not (metrics.unequal or metrics.nan_mismatch or metrics.inf_mismatch):
        return 0.0
    distance = metrics.relative_euclidean
    is_odd = metrics.nan_mismatch or metrics.inf_mismatch or math.isnan(distance)
    return math.inf if is_odd else distance


@lru_cache(maxsize=256)
def rounding(dtypes: tuple[str, str], length: int) -> float:
    """Return the relative difference that rounding makes between two correct runs; 0 for exact types.

    Args:
        dtypes: of the elements on both sides.
        length: the number of addends of an element.
    """
    # Accelerators and CPUs add narrow types up in float32.
    units = ((unit_of(dtype), min(unit_of(dtype), unit_of("float32"))) for dtype in dtypes)
    return max(SAFETY * (stored + math.sqrt(max(length, 1)) * accumulated) for stored, accumulated in units)


def longest_sum(shapes: Iterable[Sequence[int]]) -> int:
    """Return the largest number of addends that operators on tensors of these shapes can have.

    A product of matrices adds along an axis; the gradient of a weight, over all axes but the last.
    """
    return max((max(*shape, math.prod(shape[:-1])) for shape in shapes if shape), default=1)
