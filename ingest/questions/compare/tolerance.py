"""How much two runs may differ by rounding alone: derived from types, lengths of sums and what came before.

A result is rounded to its type, and what was added up for it was rounded at each addition. With n addends in
another order, the relative error grows as the square root of n times the unit roundoff (N. J. Higham and
T. Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41, 2019). So two
correct runs differ in one operator by about

    base = SAFETY * (u_stored + sqrt(n) * u_accumulated)

and what the operator reads differs already. It passes that on, at most `GROWTH` times as large:

    limit = base + GROWTH * (difference of its inputs)

but never more than the fixed limit for the type, or `DRIFT` times what the step began with. Without the
inputs of an operator, all that was executed before and is within its limits stands for them.

A gradient of parameters that is zero in theory, as that of the bias of keys before a softmax, is rounding
alone, and any two runs differ in it. It counts as equal as long as its difference is within `base` of what
the gradients of the step usually are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ingest.questions.compare.thresholds import default_limit
from workers.arrays.comparison import Metrics
from workers.arrays.dtypes import from_name
from workers.store.strict_json import finite_or_none

#: The probability that a sum of a million addends exceeds this many times the expected error is negligible.
SAFETY = 4.0
#: A difference spreads if one of this many tensors that were executed next differs, too.
_NEXT = 3
#: By how much one operator may enlarge the relative difference of what it reads.
GROWTH = 16.0
#: By how much the differences of one step may exceed those with which it began.
DRIFT = 32.0
#: Replicas may be apart by this many times the base and still be taken for rounding.
MAX_SPREAD = 16.0
#: What the names of gradients contain.
_GRADIENT = "grad"
#: What the names of parameters contain.
_PARAMETER = re.compile(r"param|weight|bias")


class Measured(NamedTuple):
    """What is known of one tensor before it is judged.

    A tuple, like `Judgement`, because one is made for every tensor: a dataclass takes longer to make.
    """

    dtypes: tuple[str, str]
    metrics: Metrics
    length: int
    """The number of addends of an element, at most."""
    inputs: tuple[float, ...] = ()
    """The differences of the inputs of its operator, if they were dumped."""
    spread: float = 0.0
    """By how much the replicas of a run differ among themselves."""
    is_gradient: bool = False
    """Whether it is the gradient of a parameter."""
    usual: float = math.nan
    """The root mean square of such gradients in this step; NaN if it is not known."""


class Judgement(NamedTuple):
    """Whether a difference is rounding."""

    limit: float
    times: float
    """How many times the limit the difference is."""
    within: bool
    own: float = 0.0
    """The part of the limit that the operator itself accounts for."""
    reason: str = ""
    spread: float = 0.0
    """The part of the limit that replicas of the same run account for."""

    @property
    def may_be_spread(self) -> bool:
        """Whether replicas of the same run, if there are any, may show that this difference is rounding."""
        return not self.within and self.times * self.limit <= self.limit + MAX_SPREAD * self.own

    def is_explained_by(self, before: float) -> bool:
        """Return whether an operator that read differences of this size may have this one, right or wrong.

        Of exact types, such as indices, any difference may follow from what was read, if that differs.
        """
        if not self.limit:
            return before > 0
        return self.times * self.limit <= self.own + GROWTH * before


@dataclass(frozen=True, slots=True)
class RoundingBound:
    """How the difference of a tensor compares with what rounding explains."""

    limit: float
    """The relative Euclidean distance that rounding and what the operator read explain."""
    times: float
    """How many times the limit the distance is; infinite if types are exact."""
    explained: bool
    """Whether rounding, or what was executed before, explains the distance."""
    spread: float = 0.0
    """The part of the limit that replicas of the same run account for; 0 if it was not needed."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        times = finite_or_none(self.times)
        return {"limit": self.limit, "times": times, "explained": self.explained, "spread": self.spread}


@dataclass(slots=True)
class ToleranceWalk:
    """Judges tensors in the order in which they were executed."""

    _healthy: float = 0.0
    """The largest difference so far of a tensor within its limits."""
    _at_start: float = field(default=0.0)
    """`_healthy` at the start of the step."""
    _coarsest: float = 0.0
    """The largest fixed limit so far: what is computed from bfloat16 is as coarse."""

    def begin_step(self) -> None:
        """Begin with the next step: parameters carry the differences of the step before."""
        self._at_start = self._healthy

    def judge(self, measured: Measured) -> Judgement:
        """Judge the next tensor."""
        difference = relative_difference(measured.metrics)
        base = rounding(measured.dtypes, measured.length)
        fixed = max(map(default_limit, measured.dtypes))
        spread = min(measured.spread, MAX_SPREAD * base)
        before = max(measured.inputs) if measured.inputs else self._healthy
        self._coarsest = max(self._coarsest, fixed)
        cap = max(self._coarsest, DRIFT * self._at_start) if fixed else 0.0
        limit = min(base + spread + GROWTH * before, cap)
        within = difference <= limit
        reason = "" if within else _reason(measured, difference, limit)
        if within and difference > min(base + GROWTH * before, cap):
            reason = f"relative difference {difference:.2g}; replicas of the same run allow for {spread:.2g}"
        if not within and _is_noise(measured, base):
            times = difference / limit if limit else math.inf
            return Judgement(limit, times, within=True, own=base, reason="rounding of what is zero in theory")
        if within:
            self._healthy = max(self._healthy, difference)
        times = difference / limit if limit else (0.0 if difference == 0 else math.inf)
        return Judgement(limit, times, within, base + spread, reason, spread)


def relative_difference(metrics: Metrics) -> float:
    """Return |a - b| / |b|; infinite if NaN or Inf are not in the same places."""
    if metrics.nan_mismatch or metrics.inf_mismatch:
        return math.inf
    if not metrics.unequal:
        return 0.0
    distance = metrics.relative_euclidean
    return math.inf if math.isnan(distance) else distance


@lru_cache(maxsize=256)
def rounding(dtypes: tuple[str, ...], length: int) -> float:
    """Return the relative difference that rounding makes between two correct runs; 0 for exact types.

    Args:
        dtypes: of the elements on both sides.
        length: the number of addends of an element.
    """
    return max(SAFETY * (_unit(dtype) + math.sqrt(max(length, 1)) * _accumulated(dtype)) for dtype in dtypes)


def longest_sum(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the largest number of addends that operators on tensors of these shapes can have.

    A product of matrices adds along an axis; the gradient of a weight, over all axes but the last.
    """
    lengths = [1]
    for shape in shapes:
        if shape:
            lengths += [max(shape), math.prod(shape[:-1])]
    return max(lengths)


def is_gradient(name: str) -> bool:
    """Return whether a tensor of this name is a gradient."""
    return _GRADIENT in name.lower()


def is_of_parameter(name: str) -> bool:
    """Return whether a tensor of this name is a parameter, or the gradient of one."""
    return bool(_PARAMETER.search(name.lower()))


def is_held_parameter(name: str) -> bool:
    """Return whether a tensor of this name is a parameter itself, and not its gradient."""
    return is_of_parameter(name) and not is_gradient(name)


def does_spread(next_tensors: Iterable[tuple[str, bool]]) -> bool:
    """Return whether what was executed next differs, too.

    If it does not, the tensor was not used as it was dumped: it was dumped before a reduction into it was
    finished, for instance. Parameters that are dumped in between are not executed.

    Args:
        next_tensors: the names of the tensors after it, in order of execution, and whether each differs by
            more than its limit.
    """
    executed = (differs for name, differs in next_tensors if not is_held_parameter(name))
    return any(islice(executed, _NEXT))


def usual_gradient(tensors: Iterable[tuple[str, Metrics | None]]) -> float:
    """Return the median root mean square of the gradients of a step; NaN if there are none.

    Args:
        tensors: names, with the metrics of those that were compared.
    """
    sizes = []
    for name, metrics in tensors:
        if metrics is None or not is_gradient(name) or not metrics.relative_euclidean:
            continue
        size = metrics.rmse / metrics.relative_euclidean
        if math.isfinite(size):
            sizes.append(size)
    return sorted(sizes)[len(sizes) // 2] if sizes else math.nan


@lru_cache(maxsize=256)
def _unit(dtype: str) -> float:
    """Return the unit roundoff of a type: half its epsilon; 0 for types without rounding."""
    try:
        values = from_name(dtype).values.newbyteorder("=")
        if values.kind in "fc":
            return float(np.finfo(values).eps) / 2
        return float(ml_dtypes.finfo(values).eps) / 2  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        return 0.0


def _accumulated(dtype: str) -> float:
    """Return the unit roundoff of sums: accelerators and CPUs add narrow types up in float32."""
    unit = _unit(dtype)
    return min(unit, _unit("float32"))


def _is_noise(measured: Measured, base: float) -> bool:
    return measured.is_gradient and measured.metrics.rmse <= base * measured.usual


def _reason(measured: Measured, difference: float, limit: float) -> str:
    metrics = measured.metrics
    if odd := metrics.nan_mismatch + metrics.inf_mismatch:
        return f"{odd} NaN or Inf in one of the two"
    if not limit:
        return f"{metrics.unequal} of {metrics.count} elements differ"
    why = f"rounding of {measured.dtypes[0]} in sums of {measured.length}"
    why += ", and what its inputs differ by" if measured.inputs else ", and what came before"
    return (
        f"relative difference {difference:.2g}, {difference / limit:.2g} times the limit {limit:.2g} ({why})"
    )
