"""Evaluates the rules that look at one step of one rank, over the tables that its commit is made of.

Names are matched only for the rows that exceed a threshold, which in a healthy step are few.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.dtypes import LIMITS, format_named
from workers.arrays.filter import BoundedColumn, Filter
from workers.arrays.histogram import Histogram, losses, scale_for
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.rules.names import is_chosen
from workers.rules.values import Rule, RuleSet, evaluated, why_failed
from workers.store.model import Evaluated, Finding, RowKind, tensor_name
from workers.store.roles import roles_of_tables
from workers.store.sketch_columns import SketchColumns
from workers.store.sketch_names import ColumnsWithSketches, is_sketch_column
from workers.store.sketches import StepSketches
from workers.store.tables import LABELS, NUMBERS, Tables, parse_record

#: The names that a condition may use.
COLUMNS = ColumnsWithSketches([*LABELS, *NUMBERS, *FIELDS, "rank", "step", "name", "role"])
Values: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.int64]
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
#: By kind. If a row exceeds several thresholds, the first one counts.
EVALUATORS: dict[str, Evaluator] = {}
#: The kinds that look at histograms.
OF_HISTOGRAMS = frozenset(["cast", "percentile"])


def evaluate(rules: RuleSet, tables: Tables, key: StepKey, sketches: StepSketches | None = None) -> Evaluated:
    """Evaluate rules on one step of one rank. A rule that fails is named; the others count.

    Memory: a few columns of float64, and the findings: at most the limit of each rule.

    Args:
        rules: the rules.
        tables: index and statistics of the step.
        key: the step.
        sketches: the sketches of the step; None if it has none.
    """
    columns = StepColumns(tables, key, sketches)
    findings: list[list[Finding]] = []
    totals: dict[str, int] = {}
    failed: dict[str, str] = {}
    for rule in rules.step_rules:
        try:
            of_rule, total = _evaluate(rule, columns)
        except Exception as exc:  # noqa: BLE001  (a rule must not stop a commit, whatever is wrong with it)
            failed[rule.name] = why_failed(exc)
            continue
        if total:
            findings.append(of_rule)
            totals[rule.name] = total
    return evaluated(rules, findings, totals, failed)


def needs_sketches(rules: RuleSet) -> bool:
    """Return whether any rule needs sketches, so that the caller must read them first."""
    return any(
        rule.kind in OF_HISTOGRAMS or (rule.where and any(map(is_sketch_column, _compiled(rule.where).names)))
        for rule in rules.step_rules
    )


def _evaluate(rule: Rule, columns: StepColumns) -> tuple[list[Finding], int]:
    if not rule.selector.has_rank(columns.key.rank):
        return [], 0
    hits_of: dict[int, RowHits] = {}
    with np.errstate(all="ignore"):
        for hits in EVALUATORS[rule.kind](rule, columns):
            for row in columns.chosen(rule, np.flatnonzero(hits.mask)).tolist():
                hits_of.setdefault(row, hits)
    stored = sorted(hits_of)[: rule.limit]
    names = columns.names(np.array(stored, np.int64))
    findings = [
        _finding(rule, columns, row, name, hits_of[row]) for row, name in zip(stored, names, strict=True)
    ]
    return findings, len(hits_of)


def _finding(rule: Rule, columns: StepColumns, row: int, name: str, hits: RowHits) -> Finding:
    value = float(hits.values[row])
    is_file = columns.tables.label("kind")[row] == RowKind.FILE.value
    return Finding(
        rule=rule.name,
        severity=rule.severity,
        rank=columns.key.rank,
        step=columns.key.step or 0,
        row=row,
        graph=str(columns.tables.label("graph")[row]),
        name="" if is_file else name,
        value=value,
        threshold=hits.threshold,
        reason=hits.describe(row, value),
    )


@dataclass
class StepColumns:
    """The columns of one step, each computed when it is first asked for.

    The statistics come from `workers.arrays.statistics`, where minimum, maximum, mean and L2 norm are over
    the finite elements.
    """

    tables: Tables
    key: StepKey
    sketches: StepSketches | None = None
    """None if they are not known."""
    _names: dict[int, str] = field(default_factory=dict)
    _statistics: dict[str, Values] = field(default_factory=dict)

    @cached_property
    def is_tensor(self) -> npt.NDArray[np.bool_]:
        """Return for each row whether it has statistics of a tensor."""
        kinds = self.tables.label("kind")
        return np.asarray((kinds == RowKind.TENSOR.value) | (kinds == RowKind.STATISTICS.value))

    def statistic(self, name: str) -> Values:
        """Return a statistic of each row; NaN if it is unknown, or if the row is not a tensor.

        Args:
            name: a field of `workers.arrays.statistics`, `abs_max` (the largest magnitude),
                `abs_max_at_least` (the same, also if only the minimum or the maximum is known), `rms` (the
                root mean square) or `spread` (maximum minus minimum).
        """
        if name not in self._statistics:
            self._statistics[name] = self._derived(name)
        return self._statistics[name]

    def _derived(self, name: str) -> Values:
        if name in ("abs_max", "abs_max_at_least"):
            larger = np.maximum if name == "abs_max" else np.fmax
            return larger(np.abs(self.statistic("min")), np.abs(self.statistic("max")))
        if name == "rms":
            finite = self.statistic("count")
            for count in ("nan_count", "pos_inf_count", "neg_inf_count"):
                finite = finite - self.statistic(count)
            return self.statistic("l2_norm") / np.sqrt(finite)
        if name == "spread":
            return self.statistic("max") - self.statistic("min")
        return np.where(self.is_tensor, self.tables.statistic(name), np.nan)

    @property
    def histograms(self) -> dict[int, Histogram]:
        """Return by row the histograms of its tensors of real numbers.

        Raises:
            UsageError: the step has such tensors without a histogram.
        """
        return self._of_sketches.histograms

    @cached_property
    def _of_sketches(self) -> SketchColumns:
        return SketchColumns(self.tables, str(self.key), lambda: self.sketches or StepSketches())

    @cached_property
    def _roles(self) -> npt.NDArray[Any]:
        return roles_of_tables(self.tables, self.is_tensor)

    def names(self, rows: Rows) -> list[str]:
        """Return the names of the tensors of rows, as `Tensor.name` spells them."""
        table, names = self.tables, self._names
        unnamed = np.array([row for row in rows.tolist() if row not in names], np.int64)
        labels = (table.label(label)[unnamed].tolist() for label in ("op_type", "op_name", "io"))
        numbers = (table.number(number)[unnamed].tolist() for number in ("slot", "occurrence"))
        for row, op_type, op_name, io, slot, occurrence in zip(
            unnamed.tolist(), *labels, *numbers, strict=True
        ):
            names[row] = tensor_name(op_type, op_name, io, slot, occurrence)
        return [names[row] for row in rows.tolist()]

    def _with_label(self, rows: Rows, label: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> Rows:
        texts = self.tables.label(label)[rows].tolist()
        chosen = {text for text in set(texts) if is_chosen(include, exclude, text)}
        of_label: Rows = rows[np.array([text in chosen for text in texts], bool)]
        return of_label

    def chosen(self, rule: Rule, rows: Rows) -> Rows:
        """Return the rows that a rule is about. The cheapest tests come first, names last."""
        selector = rule.selector
        if rule.where and len(rows):
            rows = self._where(rule.where, rows)
        for label, include, exclude in (
            ("dtype", selector.dtype, ()),
            ("io", selector.io, ()),
            ("graph", selector.graph, ()),
            ("op_type", selector.op_type, selector.exclude_op_type),
        ):
            if len(rows) and (include or exclude):
                rows = self._with_label(rows, label, include, exclude)
        if selector.include or selector.exclude:
            names = self.names(rows)
            is_named = [is_chosen(selector.include, selector.exclude, name) for name in names]
            rows = rows[np.array(is_named, bool)]
        return rows

    def _where(self, text: str, rows: Rows) -> Rows:
        condition = _compiled(text)
        columns = {name: self._column(name, rows) for name in condition.names}
        return rows[condition.mask(columns, len(rows))]

    def _column(self, name: str, rows: Rows) -> Any:
        if name in ("rank", "step"):
            return getattr(self.key, name)
        if name == "name":
            return np.array(self.names(rows), object)
        if name == "role":
            return self._roles[rows]
        if is_sketch_column(name):
            column = self._of_sketches.column(name)
            return BoundedColumn(column.low[rows], column.high[rows])
        if name in FIELDS:
            return self.tables.statistic(name)[rows]
        return (self.tables.label(name) if name in LABELS else self.tables.number(name))[rows]


@lru_cache(maxsize=256)
def _compiled(text: str) -> Filter:
    return Filter(text, COLUMNS, said_by="where")


@dataclass(frozen=True, slots=True)
class RowHits:
    """The rows for which a threshold is exceeded, before the selector of the rule is applied."""

    mask: npt.NDArray[np.bool_]
    values: Values
    """By row; NaN if the rule compares nothing."""
    threshold: float
    describe: Callable[[int, float], str]
    """Returns a sentence about a row and its value."""


Evaluator: TypeAlias = Callable[[Rule, StepColumns], Iterator[RowHits]]


def _evaluates(*kinds: str) -> Callable[[Evaluator], Evaluator]:

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


@_evaluates("black_box")
def _black_box(_: Rule, columns: StepColumns) -> Iterator[RowHits]:
    records, is_file = columns.tables.label("record"), columns.tables.label("kind") == RowKind.FILE.value
    told = {row: parse_record(records[row]).get("incident") for row in np.flatnonzero(is_file).tolist()}
    begun = np.isin(np.arange(len(records)), [row for row, incident in told.items() if incident])
    yield _flagged(begun, lambda row, _: str(told[row]))


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
    return RowHits(mask, np.full(len(mask), np.nan), math.nan, describe)
