"""The names of statistics, and what else people call them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workers.arrays.aggregate import STATISTICS
from workers.errors import UsageError

#: Other names that people use, in lower case and without `_` and `-`.
_ALIASES = {
    "norm": "l2_norm",
    "l2": "l2_norm",
    "nan": "nan_count",
    "nans": "nan_count",
    "inf": "inf_count",
    "infs": "inf_count",
    "posinf": "pos_inf_count",
    "neginf": "neg_inf_count",
    "+inf": "pos_inf_count",
    "inf+": "pos_inf_count",
    "nonfinite": "non_finite_count",
    "naninf": "non_finite_count",
    "zero": "zero_count",
    "zeros": "zero_count",
    "negative": "negative_count",
    "positive": "positive_count",
    "size": "count",
    "numel": "count",
    "minimum": "min",
    "maximum": "max",
    "average": "mean",
    "avg": "mean",
    "stddev": "std",
    "standarddeviation": "std",
    "sigma": "std",
}


def statistic_named(name: str) -> str:
    """Return the statistic that a name stands for: `l2norm` and `norm` are `l2_norm`, `nan` is `nan_count`.

    Raises:
        UsageError: the name does not stand for a statistic.
    """
    plain = re.sub(r"[\s_-]+", "", name.lower())
    by_plain = {statistic.replace("_", ""): statistic for statistic in STATISTICS}
    statistic = by_plain.get(plain) or _ALIASES.get(plain)
    if statistic is None:
        raise UsageError(f"{name!r} is not a statistic", hint=f"Statistics: {', '.join(STATISTICS)}.")
    return statistic


def statistic_for(name: str | None, chosen: Mapping[str, Any]) -> str:
    """Return the statistic that a name stands for; without one `mean` for a loss, which may be negative.

    A loss is a single number, and its mean is that number. Of all others it is `l2_norm`.

    Raises:
        UsageError: the name does not stand for a statistic.
    """
    if name is None:
        return "mean" if chosen.get("role") == "loss" else "l2_norm"
    return statistic_named(name)
