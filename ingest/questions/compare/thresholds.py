"""How much two tensors may differ: limits by name and type, and whether metrics are within them.

defaults:
  float32: {relative_euclidean: 1.0e-5}
rules:
  - {name: "Dropout.*", ignore: true}
  - {name: "*Adam*", max_abs: 1.0e-3, cosine: 0.9999}

Only the first rule that fits a tensor counts. If none fits, `defaults` by type count, then `default_limit`.

How much rounding may make two correct runs differ: a result is rounded to its type, and what was added up for
it was rounded at each addition. With n addends in another order, the relative error grows as the square root
of n times the unit roundoff (N. J. Higham and T. Mary, "A New Approach to Probabilistic Rounding Error
Analysis", SIAM J. Sci. Comput. 41, 2019). So two correct runs differ in one operator by about

    SAFETY * (u_stored + sqrt(n) * u_accumulated)
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ingest.identities.limits import unit_of
from ingest.questions.name_pattern import NamePattern
from workers.arrays.comparison import Metrics
from workers.arrays.dtypes import from_name, from_npy_descr
from workers.arrays.statistics import FIELDS
from workers.host.yaml_file import load_model
from workers.rules.names import fits
from workers.store.strict_json import finite_or_none

#: The probability that a sum of a million addends exceeds this many times the expected error is negligible.
SAFETY = 4.0


@dataclass(frozen=True, slots=True)
class RoundingBound:
    """How the difference of a tensor compares with what rounding explains."""

    limit: float
    """The relative Euclidean distance that rounding and what the operator read explain."""
    times: float
    """How many times the limit the distance is; infinite if types are exact."""
    explained: bool
    """Whether rounding, or what was executed before, explains the distance."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return dict(finite_or_none(asdict(self)))


def relative_difference(metrics: Metrics | None) -> float:
    """Return |a - b| / |b|; 0 without metrics; infinite if NaN or Inf are not in the same places."""
    if metrics is None or not (metrics.unequal or metrics.nan_mismatch or metrics.inf_mismatch):
        return 0.0
    distance = metrics.relative_euclidean
    is_odd = metrics.nan_mismatch or metrics.inf_mismatch or math.isnan(distance)
    return math.inf if is_odd else distance


@lru_cache(maxsize=256)
def rounding(dtypes: tuple[str, str], length: int) -> float:
    """Return the relative difference that rounding makes between two correct runs; 0 for exact types.

    Args:
        dtypes: of the elements on both sides.
        length: the number of addends of an element.
    """
    # Accelerators and CPUs add narrow types up in float32.
    units = ((unit_of(dtype), min(unit_of(dtype), unit_of("float32"))) for dtype in dtypes)
    return max(SAFETY * (stored + math.sqrt(max(length, 1)) * accumulated) for stored, accumulated in units)


def longest_sum(shapes: Iterable[Sequence[int]]) -> int:
    """Return the largest number of addends that operators on tensors of these shapes can have.

    A product of matrices adds along an axis; the gradient of a weight, over all axes but the last.
    """
    return max((max(*shape, math.prod(shape[:-1])) for shape in shapes if shape), default=1)


_HINT = 'docs/command-line.md, "Thresholds", shows one.'
#: The limit of types that are not floats: they must be equal.
_EXACT = 0.0
#: The relative precision of printed statistics.
_PRINTED = 1e-5


class ThresholdLimits(BaseModel):
    """Limits on the metrics of a pair. A limit that is not given is not checked."""

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
    """The largest distance from 1 of the ratio of the norms."""
    nan_inf_mismatch: int = Field(default=0, ge=0)
    """The most elements that may be NaN or infinite in only one of the two."""
    negligible: float = Field(default=0.0, ge=0)
    """If no absolute error is larger than this, only `nan_inf_mismatch` is checked."""

    def broken(self, metrics: Metrics) -> str:
        """Return the limit that is exceeded, with the figures; "" if none is.

        A metric that is not defined (NaN) exceeds every limit.
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

    def broken_by_statistics(self, a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> list[str]:
        """Return the statistic in which tensors differ by more than their limits, (tensor,); "" if none does.

        The numbers of NaN and of infinities must be equal. Minimum, maximum, mean and standard deviation may
        differ by `relative_euclidean` times the largest element, and the norm by that many times itself. The
        factor is at least 1e-5, because statistics are printed.

        Args:
            a: statistics, (tensor, len(FIELDS)); what is not known (NaN) does not differ from anything.
            b: those of the tensors that these are compared with.
        """
        factor = max(self.relative_euclidean or 0.0, _PRINTED)
        x, y = a[:, _JUDGED], b[:, _JUDGED]
        with np.errstate(invalid="ignore", over="ignore"):
            limits = np.maximum(factor * _scales(x, y), self.negligible)
            limits[:, : len(_KNOWN_COUNTS)] = 0.0
            is_broken = (x != y) & ~np.isnan(x) & ~np.isnan(y) & ~(np.abs(x - y) <= limits)
        reasons = [""] * len(a)
        rows = np.flatnonzero(is_broken.any(axis=1))
        columns = is_broken[rows].argmax(axis=1)
        figures = x[rows, columns].tolist(), y[rows, columns].tolist()
        for row, column, left, right in zip(rows.tolist(), columns.tolist(), *figures, strict=True):
            reasons[row] = _TEXTS[column].format(left, right)
        return reasons


def _scales(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the scale of each judged statistic, to which limits are relative, (tensor, statistic).

    That is the largest absolute value that is known of both tensors. If none is, and for norms, it is the
    larger of the two statistics themselves.
    """
    own = np.maximum(np.abs(x), np.abs(y))
    extremes = np.abs(np.concatenate([x[:, _EXTREMES], y[:, _EXTREMES]], axis=1))
    largest = np.where(np.isfinite(extremes), extremes, -1.0).max(axis=1)
    scales = np.where(largest[:, None] < 0, own, largest[:, None])
    scales[:, -1] = own[:, -1]
    return np.asarray(scales)


_NO_LIMITS = ThresholdLimits()
_AT_MOST = ("max_abs", "relative_euclidean", "rmse", "mean_relative", "max_relative")
_AT_LEAST = ("cosine", "within_1_per_mille", "within_5_per_mille")
_KNOWN_COUNTS = FIELDS[1:4]
_MEASURED = ("min", "max", "mean", "std", "l2_norm")
#: Where the statistics that are judged are, in this order.
_JUDGED = [FIELDS.index(name) for name in (*_KNOWN_COUNTS, *_MEASURED)]
#: Where the smallest and the largest element are among them.
_EXTREMES = [len(_KNOWN_COUNTS), len(_KNOWN_COUNTS) + 1]
_TEXTS = (
    *(f"{name} {{:g}} and {{:g}}" for name in _KNOWN_COUNTS),
    *(f"{name} {{:.6g}} and {{:.6g}}" for name in _MEASURED),
)


class ThresholdRule(NamePattern, ThresholdLimits):
    """Limits for the tensors that a pattern fits, in A or in B."""

    dtype: str | None = None
    """Glob for the type of the elements."""
    ignore: bool = False

    @model_validator(mode="after")
    def _is_a_rule(self) -> Self:
        if self.name is None and self.regex is None and self.dtype is None:
            message = "a rule needs `name`, `regex` or `dtype`"
            raise ValueError(message)
        self.refuse_bad_regex()
        return self

    def fits(self, names: tuple[str, str], dtypes: tuple[str, str]) -> bool:
        """Return whether the rule applies to a tensor with these names and types in A and B.

        Raises:
            UsageError: its regular expression takes too long.
        """
        pattern = self._pattern
        return (
            (self.name is None or any(map(fits(self.name), names)))
            and (pattern is None or any(pattern.search(name) for name in names))
            and (self.dtype is None or any(fnmatch.fnmatchcase(dtype, self.dtype) for dtype in dtypes))
        )


def _is_type(name: str) -> bool:
    """Return whether tensors may have a type of this name: `float32`, but not `float` or `f4`."""
    try:
        element = from_name(name)
        is_of_numpy = element.values.kind in "biufc" and not element.is_packed and not element.is_opaque
        return not is_of_numpy or from_npy_descr(name).name == name
    except ValueError:
        return False


def is_ignored(limits: ThresholdLimits) -> bool:
    """Return whether a rule of the user says not to compare the tensors that have these limits."""
    return isinstance(limits, ThresholdRule) and limits.ignore


class Thresholds(BaseModel):
    """All limits: rules by name, and limits by type for what no rule fits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    defaults: dict[str, ThresholdLimits] = Field(default_factory=dict)
    rules: list[ThresholdRule] = Field(default_factory=list)

    @model_validator(mode="after")
    def _types_exist(self) -> Self:
        for name in self.defaults:
            if not _is_type(name):
                message = f"defaults: {name!r} is not a type of elements, such as float32"
                raise ValueError(message)
        return self

    @cached_property
    def _known(self) -> dict[tuple[str, str], ThresholdLimits]:
        return {}

    @property
    def are_empty(self) -> bool:
        """Whether the user gave no limits."""
        return not self.rules and not self.defaults

    def limits(self, names: tuple[str, str], dtypes: tuple[str, str]) -> ThresholdLimits:
        """Return the limits for a pair with these names and types in A and B."""
        for rule in self.rules:
            if rule.fits(names, dtypes):
                return rule
        if dtypes not in self._known:
            # The coarser type decides how close they can be; sorted, so that A and B may be exchanged.
            coarser = max(sorted(dtypes), key=self._coarseness)
            default = ThresholdLimits(relative_euclidean=default_limit(coarser))
            self._known[dtypes] = self.defaults.get(coarser, default)
        return self._known[dtypes]

    def _coarseness(self, dtype: str) -> float:
        """Return the relative Euclidean distance that the user allows for a type, or else its default."""
        given = self.defaults.get(dtype, _NO_LIMITS).relative_euclidean
        return default_limit(dtype) if given is None else given


@lru_cache(maxsize=256)
def default_limit(dtype: str) -> float:
    """Return the largest relative Euclidean distance that counts as rounding, by type of elements.

    float64 and complex128: 1e-9, float32 and complex64: 1e-4, for sums over many elements in another order.
    Narrower floats: twice their epsilon, which is 2e-3 for float16, 1.6e-2 for bfloat16 and 0.25 for
    float8_e4m3. All others, such as integers and booleans: 0, they must be equal.
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
        UsageError: the file cannot be read, or something in it is not known; the message has the line.
    """
    return load_model(path, Thresholds, _HINT)
