"""The tables of one step of one rank, as rules ask for them: columns, derived statistics, and chosen rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.bounds import BoundedColumn
from workers.arrays.filter import Filter
from workers.arrays.sketches.histogram import Histogram
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.rules.names import is_chosen
from workers.rules.values import Rule
from workers.store.model import RowKind
from workers.store.names import tensor_name
from workers.store.roles import roles_of_tables
from workers.store.sketches.sketch_columns import SketchColumns
from workers.store.sketches.sketch_names import ColumnsWithSketches, is_sketch_column
from workers.store.sketches.step_sketches import StepSketches
from workers.store.tables import LABELS, NUMBERS, Tables

#: The names that a condition may use.
COLUMNS = ColumnsWithSketches([*LABELS, *NUMBERS, *FIELDS, "rank", "step", "name", "role"])

Values: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = npt.NDArray[np.int64]


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
                texts = self.tables.label(label)[rows].tolist()
                chosen = {text for text in set(texts) if is_chosen(include, exclude, text)}
                rows = rows[np.array([text in chosen for text in texts], bool)]
        if selector.include or selector.exclude:
            names = self.names(rows)
            is_named = [is_chosen(selector.include, selector.exclude, name) for name in names]
            rows = rows[np.array(is_named, bool)]
        return rows

    def _where(self, text: str, rows: Rows) -> Rows:
        condition = _condition(text)
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


def asks_sketches(where: str) -> bool:
    """Return whether a condition asks anything of sketches."""
    return bool(where) and any(is_sketch_column(name) for name in _condition(where).names)


@lru_cache(maxsize=256)
def _condition(text: str) -> Filter:
    return Filter(text, COLUMNS, said_by="where")
