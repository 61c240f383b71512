"""The columns of the sketches of a step: percentiles, losses of a cast, channels that are odd.

Their names are explained in `workers.store.sketch_names`. What is known only between two bounds must
fulfil a condition for all values between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from workers.arrays.dtypes import format_named
from workers.arrays.filter import BoundedColumn
from workers.arrays.histogram import Bounds, Histogram, losses
from workers.arrays.marginals import MarginalScope, channels_of
from workers.errors import UsageError
from workers.store.sketch_names import COUNTS, LOSS, PERCENTILE, percent_of
from workers.store.sketches import StepSketches, counted_rows, histograms_of_tables, rows_without_marginals
from workers.store.tables import Tables

HINT = "The setting `sketches` adds them to new steps, `dump-ingest sketch` to old ones."
MARGINALS_HINT = "With `marginals: all`, new steps have them; `dump-ingest sketch` adds them to old ones."


@dataclass
class SketchColumns:
    """These columns of one step, each computed when it is asked for."""

    index: Tables
    where: str
    """Names the step in errors."""
    read: Callable[[], StepSketches]
    """Reads the sketches; called once, if any column is asked for."""
    _columns: dict[str, BoundedColumn] = field(default_factory=dict)

    @cached_property
    def _sketches(self) -> StepSketches:
        return self.read()

    @cached_property
    def histograms(self) -> dict[int, Histogram]:
        """Return by row the histograms of its tensors of real numbers.

        Raises:
            UsageError: the step has such tensors without a histogram.
            DamagedStore: they are damaged.
        """
        known = histograms_of_tables(self.index, self._sketches.histograms, self.where)
        if missing := len(set(counted_rows(self.index)).difference(known)):
            raise UsageError(
                f"{self.where}: {missing} {'tensor has' if missing == 1 else 'tensors have'} no histogram",
                hint=HINT,
            )
        return known

    def column(self, name: str) -> BoundedColumn:
        """Return a column, (row,) of float64 each; NaN for rows of which nothing is known.

        Raises:
            UsageError: the step has tensors that lack what the column is made from.
            DamagedStore: the sketches are damaged.
        """
        if name not in self._columns:
            self._columns[name] = self._counts(name) if name in COUNTS else self._of_histograms(name)
        return self._columns[name]

    def _of_histograms(self, name: str) -> BoundedColumn:
        answer, elements = _question(name), self.index.statistic("count")
        low, high = (np.full(len(self.index.labels), math.nan) for _ in range(2))
        for row, histogram in self.histograms.items():
            bounds = answer(histogram, float(elements[row]))
            low[row], high[row] = bounds.low, bounds.high
        return BoundedColumn(low, high)

    def _counts(self, name: str) -> BoundedColumn:
        if self._sketches.scope is MarginalScope.NONE:
            raise UsageError(f"{self.where}: it has no marginals", hint=MARGINALS_HINT)
        counts: npt.NDArray[np.float64] = np.full(len(self.index.labels), math.nan)
        most = counts.copy()
        unknown = rows_without_marginals(self.index, self._sketches.scope)
        counts[unknown], most[unknown] = 0, math.inf
        for row, of_axis in self._sketches.marginals.by_row(self.index).items():
            size = int(np.prod(self.index.shape[row, : self.index.number("ndim")[row]]))
            odd = (channels_of(marginal, size // marginal.sum.size) for marginal in of_axis.values())
            counts[row] = most[row] = sum(len(getattr(channels, COUNTS[name])) for channels in odd)
        return BoundedColumn(counts, most)


def _question(name: str) -> Callable[[Histogram, float], Bounds]:
    if percentile := PERCENTILE.fullmatch(name):
        share, magnitude = percent_of(percentile) / 100, percentile[1] is not None
        return lambda histogram, _: histogram.quantile(share, magnitude=magnitude)
    loss = LOSS.fullmatch(name)
    assert loss is not None  # noqa: S101  (for mypy: `is_sketch_column` was asked)
    what, target = loss[1], format_named(loss[2])

    def share_lost(histogram: Histogram, elements: float) -> Bounds:
        lost: Bounds = getattr(losses(histogram, target, 1.0), what)
        return Bounds(lost.low / elements, lost.high / elements) if elements else Bounds(0, 0)

    return share_lost
