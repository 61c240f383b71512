"""Compares statistics that a dump reports with those computed from its tensors.

Both are rounded: the reported ones when they were printed and, on an accelerator, while they were summed up.
`device_stat_precision_mode: low` of MindSpore sums in the type of the elements. Besides half a unit of the
last printed digit, this tolerates:

- in every value, 2**-23 of it, because it may have passed through float32, and denormals of float32, which
  accelerators flush to zero;
- in the L2 norm and the standard deviation, the share of them that `_SUMMING` gives for the type;
- in the mean, the same share of the root mean square, because terms of opposite sign cancel.

Counts must be equal, unless the reported one was printed with fewer digits than it has, or is only the least.
"""

from __future__ import annotations

import math

from workers.arrays.statistics import COUNT_FIELDS, FIELDS, NON_FINITE_FIELDS, Statistics
from workers.dump.model import ReportedStatistics

#: Relative error of a sum on a device: four times the rounding of one addition in the narrow types. All
#: others are summed in float32, whose many small errors add up.
_SUMMING = {"float16": 2.0**-8, "bfloat16": 2.0**-5}
_SUMMING_IN_FLOAT32 = 2.0**-16
_THROUGH_FLOAT32 = 2.0**-23
_LARGEST_DENORMAL = 2.0**-126


def disagreements(report: ReportedStatistics, computed: Statistics, dtype: str) -> list[str]:
    """Return a sentence for each field that both know and that cannot be the same number, rounded.

    Args:
        report: what the dump system wrote, by our definitions.
        computed: from the tensor itself.
        dtype: name of the element type in `workers.arrays.dtypes`.
    """
    differences = []
    for field in FIELDS:
        printed, value = getattr(report.statistics, field), getattr(computed, field)
        if math.isnan(printed) or math.isnan(value):
            continue
        if field == "std" and report.std_is_of_sample:
            finite = max(_finite(computed), 1)
            printed *= math.sqrt((finite - 1) / finite)
        if report.counts_are_least and field in NON_FINITE_FIELDS and 0 < printed <= value:
            continue
        if abs(printed - value) > _tolerance(field, printed, computed, _unit(printed, report), dtype):
            digits = report.digits
            differences.append(f"{field}: {printed:.{digits}g} is reported, {value:.{digits + 3}g} computed")
    return differences


def _tolerance(field: str, printed: float, computed: Statistics, unit: float, dtype: str) -> float:
    if field in COUNT_FIELDS:
        return unit / 2 if unit > 1 and printed % unit == 0 else 0
    tolerance = unit / 2 + abs(printed) * _THROUGH_FLOAT32 + _LARGEST_DENORMAL
    summing = _SUMMING.get(dtype, _SUMMING_IN_FLOAT32)
    if field in ("l2_norm", "std"):
        tolerance += summing * abs(getattr(computed, field))
    elif field == "mean" and computed.l2_norm > 0:
        tolerance += summing * computed.l2_norm / math.sqrt(max(_finite(computed), 1))
    return tolerance


def _unit(value: float, report: ReportedStatistics) -> float:
    """Return the unit of the last printed digit of a value."""
    unit = _last_digit(value, report.digits)
    return unit if report.decimals < 0 else max(unit, 10.0**-report.decimals)


def _last_digit(value: float, digits: int) -> float:
    """Return the unit of the last printed digit of a value."""
    if not value or not math.isfinite(value):
        return 0.0
    return float(10.0 ** (math.floor(math.log10(abs(value))) - digits + 1))


def _finite(statistics: Statistics) -> float:
    return statistics.count - statistics.nan_count - statistics.pos_inf_count - statistics.neg_inf_count
