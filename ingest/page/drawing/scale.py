"""Levels of values, for colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.page.words import number, whole
from ingest.questions.plot import LOGARITHMIC
from workers.arrays.spans import divisor_for

#: Colours between the least and the greatest value.
LEVELS = 7
#: The level of values that are all equal.
ONLY_LEVEL = 5


def css_of(level: int) -> str:
    """Return the class of a level: `lv3`; 0 is `zero`, and -1 is `unknown`."""
    return {-1: "unknown", 0: "zero"}.get(level, f"lv{level}")


@dataclass(frozen=True, slots=True)
class Scale:
    """The limits of the levels of values above zero, or of all values if some are negative."""

    low: float
    high: float
    is_logarithmic: bool

    @classmethod
    def of(cls, values: npt.NDArray[np.float64], *, is_count: bool) -> Scale | None:
        """Return the scale of some values, of any shape; None if there are none that need a level.

        Zeros do not: they have a colour of their own, unless values are negative.
        """
        finite = values[np.isfinite(values)]
        has_negative = bool((finite < 0).any())
        shown = finite if has_negative else finite[finite > 0]
        if not shown.size:
            return None
        low, high = float(shown.min()), float(shown.max())
        ratio = math.log(high) - math.log(low) if low > 0 else 0
        return cls(low, high, low > 0 and (is_count or ratio > math.log(LOGARITHMIC)))

    def levels(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the level of each value, 1 to `LEVELS`; 0 for zero; -1 for what is not known."""
        level = np.full(values.shape, -1, np.int64)
        known = np.isfinite(values)
        zero = known & (values == 0) & (self.low > 0)
        level[zero] = 0
        rest = known & ~zero
        level[rest] = np.clip(np.ceil(self._share(values[rest]) * LEVELS), 1, LEVELS).astype(np.int64)
        level[np.isposinf(values)] = LEVELS
        return level

    def limits(self) -> Sequence[float]:
        """Return the limits of the levels, one more than levels."""
        if self.is_logarithmic:
            limits = np.exp(np.linspace(math.log(self.low), math.log(self.high), LEVELS + 1))
        else:
            divisor = divisor_for(self.low, self.high)
            limits = np.linspace(self.low / divisor, self.high / divisor, LEVELS + 1) * divisor
        return [float(limit) for limit in limits]

    def legend(self, *, is_count: bool) -> list[tuple[str, str]]:
        """Return the colours of the levels, each as a class and its words."""
        if self.low == self.high:
            return [(css_of(ONLY_LEVEL), whole(self.low) if is_count else number(self.low))]
        write: Callable[[float], str] = whole if is_count else _rounded
        first, *limits = map(write, self.limits())
        return [("lv1", f"from {first}"), *((css_of(n), f"to {up}") for n, up in enumerate(limits[1:], 2))]

    def _share(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return where between the least and the greatest value each value lies, 0 to 1."""
        if self.low == self.high:
            return np.full(values.shape, ONLY_LEVEL / LEVELS - 1e-9)
        if self.is_logarithmic:
            share = (np.log(values) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            divisor = divisor_for(self.low, self.high)
            share = (values / divisor - self.low / divisor) / (self.high / divisor - self.low / divisor)
        clipped: npt.NDArray[np.float64] = np.clip(share, 0, 1)
        return clipped


def _rounded(limit: float) -> str:
    return number(limit, digits=3)
