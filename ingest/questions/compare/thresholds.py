"""How much two tensors may differ: limits by name and type, and what they make of metrics.

defaults:
  float32: {relative_euclidean: 1.0e-5}
rules:
  - {name: "Dropout.*", ignore: true}
  - {name: "*Adam*", max_abs: 1.0e-3, cosine: 0.9999}

The first rule that fits a tensor counts, and it alone; then `defaults` by type; then `DEFAULTS`.
"""

from __future__ import annotations

import fnmatch
import math
import re
from functools import cached_property
from pathlib import Path
from typing import Self

import ml_dtypes
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from workers.arrays.comparison import Metrics
from workers.arrays.dtypes import from_name
from workers.arrays.statistics import FIELDS, Statistics
from workers.rules.yaml_file import load_model

_HINT = 'docs/command-line.md, "Thresholds", shows one.'
#: Types that are no floats: they must be equal.
_EXACT = 0.0
#: Relative digits that printed statistics have.
_PRINTED = 1e-5


class ThresholdLimits(BaseModel):
    """What must hold of the metrics of a pair. What is not given is not asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_abs: float | None = Field(default=None, ge=0)
    max_relative: float | None = Field(default=None, ge=0)
    mean_relative: float | None = Field(default=None, ge=0)
    rmse: float | None = Field(default=None, ge=0)
    relative_euclidean: float | None = Field(default=None, ge=0)
    cosine: float | None = Field(default=None, ge=-1, le=1)
    """At least."""
    within_1_per_mille: float | None = Field(default=None, ge=0, le=1)
    """At least."""
    within_5_per_mille: float | None = Field(default=None, ge=0, le=1)
    """At least."""
    norm_ratio: float | None = Field(default=None, ge=0)
    """How far from 1 the ratio of the norms may be."""
    nan_inf_mismatch: int = Field(default=0, ge=0)
    """Elements that may be NaN or infinite in one of the two alone."""
    negligible: float = Field(default=0.0, ge=0)
    """Where no absolute error is larger, nothing else but `nan_inf_mismatch` is asked."""

    def broken(self, metrics: Metrics) -> str:
        """Return the limit that does not hold, with the figures; "" where all do.

        A metric that is not defined (NaN) does not hold.
        """
        odd = metrics.nan_mismatch + metrics.inf_mismatch
        if odd > self.nan_inf_mismatch:
            return f"{odd} NaN or Inf in one of the two"
        if metrics.max_abs <= self.negligible:
            return ""
        return self._too_much(metrics) or self._too_little(metrics)

    def _too_much(self, metrics: Metrics) -> str:
        for name in _AT_MOST:
            limit, value = getattr(self, name), getattr(metrics, name)
            if limit is not None and not value <= limit:
                if limit == 0 or math.isnan(value):
                    return f"{metrics.unequal} of {metrics.count} elements differ"
                return f"{name} {value:.3g} > {limit:.3g}"
        return ""

    def _too_little(self, metrics: Metrics) -> str:
        for name in _AT_LEAST:
            limit, value = getattr(self, name), getattr(metrics, name)
            if limit is not None and not value >= limit:
                return f"{name} {value:.6g} < {limit:.6g}"
        if self.norm_ratio is not None and not abs(metrics.norm_ratio - 1) <= self.norm_ratio:
            return f"norm_ratio {metrics.norm_ratio:.6g} is not 1 within {self.norm_ratio:.3g}"
        return ""

    def broken_by_statistics(self, a: Statistics, b: Statistics) -> str:
        """Return the statistic in which two tensors differ by more than their limits; "" where none does.

        Numbers of NaN and of infinities must be equal. Minimum, maximum, mean and standard deviation may
        differ by the limit of `relative_euclidean` (1e-5 where there is none or it is less, for statistics
        are printed) of the largest element, the norm by that of itself.
        """
        limit = max(self.relative_euclidean or 0.0, _PRINTED)
        sizes = [abs(x) for one in (a, b) for x in (one.min, one.max) if math.isfinite(x)]
        largest = max(sizes, default=math.nan)
        for name in _KNOWN_COUNTS:
            x, y = getattr(a, name), getattr(b, name)
            if x != y and not math.isnan(x) and not math.isnan(y):
                return f"{name} {x:g} and {y:g}"
        for name in ("min", "max", "mean", "std", "l2_norm"):
            x, y = getattr(a, name), getattr(b, name)
            if math.isnan(x) or math.isnan(y) or x == y:
                continue
            scale = max(abs(x), abs(y)) if name == "l2_norm" or math.isnan(largest) else largest
            if not abs(x - y) <= max(limit * scale, self.negligible):
                return f"{name} {x:.6g} and {y:.6g}"
        return ""


_AT_MOST = ("max_abs", "relative_euclidean", "rmse", "mean_relative", "max_relative")
_AT_LEAST = ("cosine", "within_1_per_mille", "within_5_per_mille")
_KNOWN_COUNTS = FIELDS[1:4]


class ThresholdRule(ThresholdLimits):
    """Limits for the tensors that a pattern fits, in A or in B."""

    name: str | None = None
    """Glob over the whole name."""
    regex: str | None = None
    """Regular expression that is searched in the name."""
    dtype: str | None = None
    """Glob over the type of elements."""
    ignore: bool = False
    """Whether these are not looked at."""

    @model_validator(mode="after")
    def _is_a_rule(self) -> Self:
        if self.name is None and self.regex is None and self.dtype is None:
            message = "a rule needs `name`, `regex` or `dtype`"
            raise ValueError(message)
        try:
            re.compile(self.regex or "")
        except re.error as exc:
            message = f"regex {self.regex!r}: {exc}"
            raise ValueError(message) from exc
        return self

    def fits(self, names: tuple[str, str], dtypes: tuple[str, str]) -> bool:
        """Whether this is about a tensor with these names and types in A and B."""
        return (
            (self.name is None or any(fnmatch.fnmatchcase(name, self.name) for name in names))
            and (self.regex is None or any(re.search(self.regex, name) for name in names))
            and (self.dtype is None or any(fnmatch.fnmatchcase(dtype, self.dtype) for dtype in dtypes))
        )


class Thresholds(BaseModel):
    """All limits: rules by name, and limits by type for what no rule fits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    defaults: dict[str, ThresholdLimits] = Field(default_factory=dict)
    rules: list[ThresholdRule] = Field(default_factory=list)

    @model_validator(mode="after")
    def _types_exist(self) -> Self:
        for name in self.defaults:
            try:
                from_name(name)
            except ValueError as exc:
                message = f"defaults: {name!r} is no type of elements"
                raise ValueError(message) from exc
        return self

    @cached_property
    def _known(self) -> dict[tuple[str, str], ThresholdLimits]:
        return {}

    def limits(self, names: tuple[str, str], dtypes: tuple[str, str]) -> ThresholdLimits:
        """Return what is asked of a pair with these names and types in A and B."""
        for rule in self.rules:
            if rule.fits(names, dtypes):
                return rule
        if dtypes not in self._known:
            both = [
                self.defaults.get(dtype) or ThresholdLimits(relative_euclidean=default_limit(dtype))
                for dtype in dtypes
            ]
            # The coarser type says how near they can be.
            self._known[dtypes] = max(both, key=lambda one: one.relative_euclidean or 0.0)
        return self._known[dtypes]


def default_limit(dtype: str) -> float:
    """Return the largest relative Euclidean distance that is taken for rounding, by type of elements.

    float64 and complex128 1e-9, float32 and complex64 1e-4: sums over many elements in another order.
    Narrower floats: twice their epsilon, which is float16 2e-3, bfloat16 1.6e-2, float8_e4m3 0.25. All
    others, such as integers and booleans, 0: they must be equal.
    """
    try:
        values = from_name(dtype).values
    except ValueError:
        return _EXACT
    if dtype == "complex32":
        return 2 * float(np.finfo(np.float16).eps)
    if values.kind in "fc" and values.itemsize >= 4:
        return 1e-4 if values.newbyteorder("=") in _SINGLE else 1e-9
    try:
        return 2 * float(ml_dtypes.finfo(values.newbyteorder("=")).eps)  # type: ignore[no-untyped-call]
    except ValueError:
        return _EXACT


_SINGLE = (np.dtype(np.float32), np.dtype(np.complex64))


def load_thresholds(path: Path) -> Thresholds:
    """Read a file of thresholds.

    Raises:
        UsageError: it cannot be read, or something in it is not known: with the line.
    """
    return load_model(path, Thresholds, _HINT)
