"""Rules that look at one step of one rank, over the tables that its commit is made of.

Each kind is arithmetic over whole columns; names are matched only for the rows that are left then, which in a
healthy step are few.

Statistics are those of `workers.arrays.statistics`: minimum, maximum, mean and L2 norm are over the finite elements.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from workers.arrays.filter import Filter
from workers.arrays.statistics import FIELDS
from workers.errors import DumpIngestError
from workers.model import StepKey
from workers.rules.select import is_chosen
from workers.rules.values import Rule, RuleSet, evaluated
from workers.store.model import Evaluated, Finding, RowKind
from workers.store.tables import LABELS, NUMBERS, Tables

#: What a condition may name.
COLUMNS = frozenset([*LABELS, *NUMBERS, *FIELDS, "rank", "step", "name"])
#: How large the finite numbers of a type get, where NumPy and ml_dtypes know it.
_FLOATS: tuple[str, ...] = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
)
_FLOATS += ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")
LIMITS: Mapping[str, float] = {
    name: float(ml_dtypes.finfo(name).max)  # type: ignore[no-untyped-call]
    for name in _FLOATS
}

Values: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Hits:
    """The rows for which a threshold is exceeded."""

    mask: npt.NDArray[np.bool_]
    """By row, before the selector is asked."""
    values: Values
    """By row."""
    threshold: float
    say: Callable[[int, float], str]
    """From row and value to a sentence."""


@dataclass
class _Columns:
    """The tables of a step as rules ask for them."""

    tables: Tables
    key: StepKey
    _names: dict[int, str] = field(default_factory=dict)
    _statistics: dict[str, Values] = field(default_factory=dict)

    @cached_property
    def is_tensor(self) -> npt.NDArray[np.bool_]:
        kinds = self.tables.label("kind")
        return np.asarray((kinds == RowKind.TENSOR.value) | (kinds == RowKind.STATISTICS.value))

    def statistic(self, name: str) -> Values:
        """Return a statistic of each row; NaN where nothing is known, or where the row is no tensor."""
        if name not in self._statistics:
            self._statistics[name] = self._calculated(name)
        return self._statistics[name]

    def _calculated(self, name: str) -> Values:
        if name == "abs_max":
            return np.maximum(np.abs(self.statistic("min")), np.abs(self.statistic("max")))
        if name == "rms":
            finite = self.statistic("count")
            for one in ("nan_count", "pos_inf_count", "neg_inf_count"):
                finite = finite - self.statistic(one)
            return self.statistic("l2_norm") / np.sqrt(finite)
        if name == "spread":
            return self.statistic("max") - self.statistic("min")
        return np.where(self.is_tensor, self.tables.statistic(name), np.nan)

    def names(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """Return the names of the tensors of rows, as `Tensor.name` spells them."""
        table, names = self.tables, self._names
        unnamed = np.array([row for row in rows.tolist() if row not in names], np.int64)
        labels = (table.label(one)[unnamed].tolist() for one in ("op_type", "op_name", "io"))
        numbers = (table.number(one)[unnamed].tolist() for one in ("slot", "occurrence"))
        for row, op_type, op_name, io, slot, occurrence in zip(
            unnamed.tolist(), *labels, *numbers, strict=True
        ):
            again = f"#{occurrence}" if occurrence else ""
            names[row] = f"{op_type}.{op_name}.{io}.{slot}{again}"
        return [names[row] for row in rows.tolist()]

    def chosen(self, rule: Rule, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of the rows that a rule is about. What costs least is asked first, names last."""
        selector = rule.selector
        if rule.where and len(rows):
            condition = _condition(rule.where)
            columns = {one: self._column(one, rows) for one in condition.names}
            rows = rows[condition.mask(columns, len(rows))]
        for label, one_of, none_of in (
            ("dtype", selector.dtype, ()),
            ("io", selector.io, ()),
            ("graph", selector.graph, ()),
            ("op_type", selector.op_type, selector.exclude_op_type),
        ):
            if len(rows) and (one_of or none_of):
                texts = self.tables.label(label)[rows].tolist()
                chosen = {one for one in set(texts) if is_chosen(one_of, none_of, one)}
                rows = rows[np.array([one in chosen for one in texts], bool)]
        if selector.include or selector.exclude:
            names = self.names(rows)
            one_of, none_of = selector.include, selector.exclude
            rows = rows[np.array([is_chosen(one_of, none_of, name) for name in names], bool)]
        return rows

    def _column(self, name: str, rows: npt.NDArray[np.int64]) -> Any:
        if name == "rank":
            return self.key.rank
        if name == "step":
            return self.key.step
        if name == "name":
            return np.array(self.names(rows), object)
        if name in FIELDS:
            return self.tables.statistic(name)[rows]
        return (self.tables.label(name) if name in LABELS else self.tables.number(name))[rows]


@lru_cache(maxsize=256)
def _condition(text: str) -> Filter:
    return Filter(text, COLUMNS, said_by="where")


def evaluate(rules: RuleSet, tables: Tables, key: StepKey) -> Evaluated:
    """Return what the rules find in one step of one rank. A rule that fails is named; the others count.

    Memory: a few columns of float64, and the findings: at most the limit of each rule.
    """
    columns = _Columns(tables, key)
    found: list[list[Finding]] = []
    totals: dict[str, int] = {}
    failed: dict[str, str] = {}
    for rule in rules.of_steps:
        try:
            findings, total = _evaluate(rule, columns)
        except Exception as exc:  # noqa: BLE001  (a rule must not stop a commit, whatever is wrong with it)
            said = exc.message if isinstance(exc, DumpIngestError) else f"{type(exc).__name__}: {exc}"
            failed[rule.name] = said[:500]
            continue
        if total:
            found.append(findings)
            totals[rule.name] = total
    return evaluated(rules, found, totals, failed)


def _evaluate(rule: Rule, columns: _Columns) -> tuple[list[Finding], int]:
    key = columns.key
    if not rule.selector.has_rank(key.rank):
        return [], 0
    found: dict[int, _Hits] = {}
    with np.errstate(all="ignore"):
        for hits in _KINDS[rule.kind](rule, columns):
            # Of several thresholds that a tensor exceeds, the first one speaks.
            for row in columns.chosen(rule, np.flatnonzero(hits.mask)).tolist():
                found.setdefault(row, hits)
    graphs = columns.tables.label("graph")
    findings = []
    stored = sorted(found)[: rule.limit]
    names = columns.names(np.array(stored, np.int64))
    for row, name in zip(stored, names, strict=True):
        hits, value = found[row], float(found[row].values[row])
        findings.append(
            Finding(
                rule.name,
                rule.severity,
                key.rank,
                key.step or 0,
                row,
                str(graphs[row]),
                name,
                value,
                hits.threshold,
                hits.say(row, value),
            )
        )
    return findings, len(found)


_WORDS = {"nan": "NaN", "pos_inf": "+Inf", "neg_inf": "-Inf"}


def _not_finite(rule: Rule, columns: _Columns) -> Iterator[_Hits]:
    counts = {one: np.nan_to_num(columns.statistic(f"{one}_count")) for one in rule["of"]}
    total = sum(counts.values(), np.zeros(len(columns.is_tensor)))
    elements = columns.statistic("count")

    def say(row: int, _: float) -> str:
        parts = [f"{counts[one][row]:.0f} {_WORDS[one]}" for one in counts if counts[one][row]]
        return f"{', '.join(parts)} of {elements[row]:.0f} elements"

    yield _Hits(total > rule["count_gt"], total, rule["count_gt"], say)


def _headroom(rule: Rule, columns: _Columns) -> Iterator[_Hits]:
    dtypes = columns.tables.label("dtype")
    largest = columns.statistic("abs_max")
    for dtype in sorted({*dtypes[columns.is_tensor]} & LIMITS.keys()):
        limit = LIMITS[dtype]
        share = np.where(dtypes == dtype, largest / limit, np.nan)
        for name, over in (("share_gt", np.greater), ("share_ge", np.greater_equal)):
            if rule[name] is not None:
                yield _Hits(
                    over(share, rule[name]),
                    share,
                    rule[name],
                    lambda row, value, limit=limit, dtype=dtype: (  # type: ignore[misc]
                        f"max |x| is {largest[row]:.6g}, {value:.1%} of what {dtype} can hold ({limit:.6g})"
                    ),
                )


_BOUNDS = {
    "rms": "root mean square",
    "abs_max": "max |x|",
    "max": "max",
    "min": "min",
    "mean": "mean",
    "l2_norm": "L2 norm",
    "spread": "max - min",
}


def _bounds(rule: Rule, columns: _Columns) -> Iterator[_Hits]:
    """Compare statistics with thresholds: `max_gt` is the statistic `max`, and fires above."""
    for name, threshold in rule.parameters:
        statistic, _, ending = name.rpartition("_")
        if not isinstance(threshold, float) or statistic not in _BOUNDS or ending not in ("gt", "lt"):
            continue
        values = columns.statistic(statistic)
        above = ending == "gt"
        yield _Hits(
            (values > threshold) if above else (values < threshold),
            values,
            threshold,
            lambda _, value, what=_BOUNDS[statistic], sign=">" if above else "<", bound=threshold: (  # type: ignore[misc]
                f"{what} {value:.6g} {sign} {bound:g}"
            ),
        )


def _zeros(rule: Rule, columns: _Columns) -> Iterator[_Hits]:
    elements = columns.statistic("count")
    share = columns.statistic("zero_count") / elements
    mask = (share >= rule["share_ge"]) & (elements >= rule["elements_ge"])
    yield _Hits(
        mask,
        share,
        rule["share_ge"],
        lambda row, value: f"{value:.2%} of {elements[row]:.0f} elements are zero",
    )


def _range(rule: Rule, columns: _Columns) -> Iterator[_Hits]:
    for statistic, name, below in (("min", "min_ge", True), ("max", "max_le", False)):
        threshold = rule[name]
        if threshold is not None:
            values = columns.statistic(statistic)
            yield _Hits(
                (values < threshold) if below else (values > threshold),
                values,
                threshold,
                lambda _, value, what=statistic, word="below" if below else "above", bound=threshold: (  # type: ignore[misc]
                    f"{what} {value:.6g} is {word} {bound:g}"
                ),
            )
    yield from _bounds(rule, columns)


def _disagreement(_: Rule, columns: _Columns) -> Iterator[_Hits]:
    problems = columns.tables.label("problem")
    mask = columns.tables.disagreeing & columns.is_tensor
    yield _Hits(mask, np.full(len(mask), np.nan), math.nan, lambda row, _: str(problems[row]))


def _overflow(_: Rule, columns: _Columns) -> Iterator[_Hits]:
    mask = np.asarray(columns.tables.label("kind") == RowKind.OVERFLOW.value)
    records = columns.tables.label("record")

    def say(row: int, _: float) -> str:
        try:
            failed = json.loads(str(records[row]))["failed"]
            names = [f"{one.get('op_type', '')}.{one.get('op_name', '')}".strip(".") for one in failed]
        except (ValueError, KeyError, TypeError, AttributeError):
            names = []
        about = ", ".join(name for name in names[:3] if name)
        return "the hardware recorded an overflow" + (f" in {about}" if about else "")

    yield _Hits(mask, np.full(len(mask), np.nan), math.nan, say)


def _by_condition(rule: Rule, columns: _Columns) -> Iterator[_Hits]:
    # The condition itself is asked together with the selector.
    nothing = np.full(len(columns.is_tensor), np.nan)
    yield _Hits(columns.is_tensor, nothing, math.nan, lambda _row, _value: rule.where)


_KINDS: dict[str, Callable[[Rule, _Columns], Iterator[_Hits]]] = {
    "not_finite": _not_finite,
    "headroom": _headroom,
    "too_large": _bounds,
    "too_small": _bounds,
    "zeros": _zeros,
    "range": _range,
    "disagreement": _disagreement,
    "overflow": _overflow,
    "condition": _by_condition,
}
