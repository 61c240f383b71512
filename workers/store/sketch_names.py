"""What conditions may ask of the sketches of a step: percentiles, losses of a cast, channels that are odd.

`p99.9` (which Python would take for two numbers, so it is `p99_9` inside) and `abs_p99.9` are percentiles of
the finite elements and of their magnitudes; `overflow_e4m3` and `underflow_e4m3` the share of the elements
that a cast to a format loses; `outlier_channels`, `dead_channels` and `saturated_channels` how many positions
of all axes are so. `workers.store.sketch_columns` computes them.
"""

from __future__ import annotations

import re
from functools import lru_cache

from workers.arrays.dtypes import format_named
from workers.errors import UsageError

#: Columns that count channels, and the attribute of `workers.arrays.marginals` that has these.
COUNTS = {
    "outlier_channels": "outlying",
    "dead_channels": "dead",
    "saturated_channels": "saturated",
}
PERCENTILE = re.compile(r"(abs_)?p(\d{1,3}(?:_\d{1,9})?)")
LOSS = re.compile(r"(overflow|underflow)_([a-z][a-z0-9_]*)")


class ColumnsWithSketches(frozenset[str]):
    """Names of columns, including all values that can be computed from sketches."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and is_sketch_column(name))


@lru_cache(maxsize=1024)
def is_sketch_column(name: str) -> bool:
    """Return whether a name is one of those that this module explains."""
    if name in COUNTS:
        return True
    if percentile := PERCENTILE.fullmatch(name):
        return percent_of(percentile) <= 100
    if loss := LOSS.fullmatch(name):
        try:
            format_named(loss[2])
        except UsageError:
            return False
        return True
    return False


def percent_of(match: re.Match[str]) -> float:
    """Return the percentage of a match of `PERCENTILE`."""
    return float(match[2].replace("_", "."))
