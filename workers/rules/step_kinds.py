"""The kinds of rules that look at one step of one rank. Each is arithmetic over whole columns.

To add a kind, add a function here and a model in `workers.rules.schema`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.dtypes import LIMITS
from workers.arrays.number_formats import format_named
from workers.arrays.sketches.rounding import losses, scale_for
from workers.rules.step_columns import StepColumns, Values
from workers.rules.values import Rule
from workers.store.model import RowKind

_NOT_FINITE = {"nan": "NaN", "pos_inf": "+Inf", "neg_inf": "-Inf"}
#: Statistics that have thresholds of their own, as messages call them.
_STATISTICS = {
    "rms": "root mean square",
    "abs_max": "max |x|",
    "max": "max",
    "min": "min",
    "mean": "mean",
    "l2_norm": "L2 norm",
    "spread": "max - min",
}


@dataclass(frozen=True, slots=True)
class RowHits:
    """The rows for which a threshold is exceeded, before the selector of the rule is applied."""

    mask: npt.NDArray[np.bool_]
    """By row."""
    values: Values
    """By row; NaN if the rule compares nothing."""
    threshold: float
    describe: Callable[[int, float], str]
    """Returns a sentence about a row and its value."""


Evaluator: TypeAlias = Callable[[Rule, StepColumns], Iterator[RowHits]]
#: By kind. If a row exceeds several thresholds, the first one counts.
EVALUATORS: dict[str, Evaluator] = {}
#: The kinds that look at histograms.
OF_HISTOGRAMS = frozenset(["cast", "percentile"])


def _evaluates(*kinds: str) -> Callable[[Evaluator], Evaluator]:
    """Register what evaluates the rules of some kinds."""

    def register(evaluator: Evaluator) -> Evaluator:
        EVALUATORS.update(dict.fromkeys(kinds, evaluator))
        return evaluator

    return register


@_evaluates("not_finite")
def _not_finite(rule: Rule, columns: StepColumns) -> Iterator[RowHits]:
    counts = {what: np.nan_to_num(columns.statistic(f"{what}_count")) for what in rule["of"]}
    total = sum(counts.values(), np.zeros(len(columns.is_tensor)))
    elements = columns.statistic("count")

    def describe(row: int, _: float) -> str:
        parts = [f"{counts[what][row]:.0f} {_NOT_FINITE[what]}" for what in counts if counts[what][row]]
        number = elements[row]
        plural = "" if number == 1 else "s"
        return ", ".join(parts) + ("" if math.isnan(number) else f" of {number:.0f} element{plural}")

    yield RowHits(total > rule["count_gt"], total, rule["count_gt"], describe)


@_evaluates("headroom")
def _headroom(rule: Rule, columns: StepColumns) -> Iterator[RowHits]:
    dtypes = columns.tables.label("dtype")
    for dtype in sorted({*dtypes[columns.is_tensor]} & LIMITS.keys()):
        yield from _headroom_of_type(rule, columns, dtype, dtypes == dtype)


def _headroom_of_type(
    rule: Rule, columns: StepColumns, dtype: str, has_type: npt.NDArray[np.bool_]
) -> Iterator[RowHits]:
    limit, largest = LIMITS[dtype], columns.statistic("abs_max_at_least")
    share = np.where(has_type, largest / limit, np.nan)

    def describe(row: int, value: float) -> str:
        return f"max |x| is {largest[row]:.6g}, {value:.1%} of what {dtype} can hold ({limit:.6g})"

    for name, exceeds in (("share_gt", np.greater), ("share_ge", np.greater_equal)):
        if rule[name] is not None:
            yield RowHits(exceeds(share, rule[name]), share, rule[name], describe)


def _beyond(values: Values, threshold: float, *, above: bool, what: str, relation: str) -> RowHits:
    """Return the rows whose values are above a threshold, or below it."""
    return RowHits(
        values > threshold if above else values < threshold,
        values,
        threshold,
        lambda _, value: f"{what} {value:.6g} {relation} {threshold:g}",
    )


@_evaluates("too_large", "too_small")
def _bounds(rule: Rule, columns: StepColumns) -> Iterator[RowHits]:
    """Compare statistics with thresholds: `max_gt` is about the statistic `max`, and fires above."""
    for name, threshold in rule.parameters:
        statistic, _, ending = name.rpartition("_")
        if not isinstance(threshold, float) or statistic not in _STATISTICS or ending not in ("gt", "lt"):
            continue
        values = columns.statistic("abs_max_at_least" if name == "abs_max_gt" else statistic)
        what, above = _STATISTICS[statistic], ending == "gt"
        yield _beyond(values, threshold, above=above, what=what, relation=">" if above else "<")


@_evaluates("range")
def _range(rule: Rule, columns: StepColumns) -> Iterator[RowHits]:
    if rule["min_ge"] is not None:
        values = columns.statistic("min")
        yield _beyond(values, rule["min_ge"], above=False, what="min", relation="is below")
    if rule["max_le"] is not None:
        values = columns.statistic("max")
        yield _beyond(values, rule["max_le"], above=True, what="max", relation="is above")
    yield from _bounds(rule, columns)


@_evaluates("zeros")
def _zeros(rule: Rule, columns: StepColumns) -> Iterator[RowHits]:
    elements = columns.statistic("count")
    share = columns.statistic("zero_count") / elements
    mask = (share >= rule["share_ge"]) & (elements >= rule["elements_ge"])

    def describe(row: int, value: float) -> str:
        return f"{value:.2%} of {elements[row]:.0f} elements are zero"

    yield RowHits(mask, share, rule["share_ge"], describe)


@_evaluates("disagreement")
def _disagreement(_: Rule, columns: StepColumns) -> Iterator[RowHits]:
    problems = columns.tables.label("problem")
    yield _flagged(columns.tables.disagreeing & columns.is_tensor, lambda row, _: str(problems[row]))


@_evaluates("overflow")
def _overflow(_: Rule, columns: StepColumns) -> Iterator[RowHits]:
    records = columns.tables.label("record")

    def describe(row: int, _: float) -> str:
        try:
            failed = json.loads(str(records[row]))["failed"]
            names = [f"{op.get('op_type', '')}.{op.get('op_name', '')}".strip(".") for op in failed]
        except (ValueError, KeyError, TypeError, AttributeError):
            names = []
        operators = ", ".join(name for name in names[:3] if name)
        return "the hardware recorded an overflow" + (f" in {operators}" if operators else "")

    yield _flagged(np.asarray(columns.tables.label("kind") == RowKind.OVERFLOW.value), describe)


@_evaluates("condition")
def _condition(rule: Rule, columns: StepColumns) -> Iterator[RowHits]:
    # The condition itself is evaluated together with the selector.
    yield _flagged(columns.is_tensor, lambda _row, _value: rule.where)


@_evaluates("cast")
def _cast(rule: Rule, columns: StepColumns) -> Iterator[RowHits]:
    """Compare what is certainly lost: the lower of two bounds."""
    target = format_named(rule["format"])
    elements = columns.statistic("count")
    lost = {"overflow": np.full(len(elements), np.nan), "underflow": np.full(len(elements), np.nan)}
    for row, histogram in columns.histograms.items():
        scale = 1.0
        if rule["scaling"] == "current":
            scale = scale_for(histogram.largest, target, powers_of_two=False)
        in_row = losses(histogram, target, scale)
        lost["overflow"][row] = in_row.overflow.low / elements[row]
        lost["underflow"][row] = in_row.underflow.low / elements[row]
    for what, shares in lost.items():
        threshold = rule[f"{what}_gt"]
        if threshold is not None:
            words = f"of its elements would {what} in {target.name}"
            yield RowHits(shares > threshold, shares, threshold, lambda _, share, w=words: f"{share:.3%} {w}")  # type: ignore[misc]


@_evaluates("percentile")
def _percentile(rule: Rule, columns: StepColumns) -> Iterator[RowHits]:
    """Compare what is certain: the lower bound with what it may exceed, the upper one with the other."""
    low, high = (np.full(len(columns.is_tensor), np.nan) for _ in range(2))
    for row, histogram in columns.histograms.items():
        bounds = histogram.quantile(rule["percent"] / 100, magnitude=rule["magnitude"])
        low[row], high[row] = bounds.low, bounds.high
    what = f"percentile {rule['percent']:g}" + (" of |x|" if rule["magnitude"] else "")
    if rule["gt"] is not None:
        yield _beyond(low, rule["gt"], above=True, what=f"{what}, at least", relation=">")
    if rule["lt"] is not None:
        yield _beyond(high, rule["lt"], above=False, what=f"{what}, at most", relation="<")


def _flagged(mask: npt.NDArray[np.bool_], describe: Callable[[int, float], str]) -> RowHits:
    """Return rows that are hits without any comparison."""
    return RowHits(mask, np.full(len(mask), np.nan), math.nan, describe)
