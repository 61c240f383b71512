"""How far a tensor is from its counterpart, as it is, without a factor, and with rows in any order."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.identities.limits import unit_of
from ingest.questions.compare.thresholds import relative_difference
from ingest.reader.operator_kinds import StepPart
from workers.arrays.comparison import Metrics

#: Gradients have one factor if what is left of them without it is less than this, relative to them.
_PARALLEL = 1e-3
#: Few elements are less than one in this many; a smaller tensor does not tell few from many.
MANY = 64
#: Last bits of a small tensor differ by another order of sums if those of one element in this many do, and of
#: at least as many: a fault is in one element.
_SHARE = 4
#: Calls with the same bytes on both sides show that operators are deterministic if rounding had shown in them
#: but with this probability. How many calls that takes.
_CHANCE = 1e-6
_FEWEST_CALLS = 2


class Measured(NamedTuple):
    """How far a tensor of A is from its counterpart."""

    number: int
    dtypes: tuple[str, str]
    shape: tuple[int, ...]
    metrics: Metrics | None = None
    """None if the bytes are equal, or nothing makes the two comparable."""
    fits: bool = True
    """Whether they could be compared: pieces of ranks may make up no tensor."""
    spread: float = 0.0
    """By how much replicas differ among themselves."""
    is_alike: bool = True
    """Whether its ranks hold it alike on both sides, so that operators on it do the same on both."""
    zeros: float = 0.0
    """The share of its elements that are zero: rounding does not show in these."""
    averaged: float = 1.0
    """The factor of the sum if what ranks of A hold is taken for its mean, and the other way round for B."""
    rms: float = math.nan
    """The root mean square of its elements; NaN if it is not known."""

    @property
    def unequal(self) -> int:
        """How many elements differ, be it in their bits alone."""
        if self.metrics is None or self.metrics.bit_equal:
            return 0 if self.fits else self.size
        return max(self.metrics.unequal, 1)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def differs_in_last_bits(self, calls: int) -> bool:
        """Return whether the last bits of many elements differ, and nothing else; narrow types hide that.

        `calls` is over how many it was added up: each rounds.
        """
        unit = max(map(unit_of, self.dtypes))
        share = MANY if self.size >= MANY else _SHARE
        is_many = self.unequal >= _SHARE and self.unequal * share > self.size
        if self.metrics is None or not is_many or not 0 < unit <= unit_of("float32"):
            return False
        is_factor = abs(self.metrics.norm_ratio - 1) > MANY * unit  # which may have been undone
        return self.difference <= calls * unit and not is_factor

    @property
    def difference_text(self) -> str:
        """How it differs: by a factor, or in how many elements, and by how much."""
        factor = self.metrics.norm_ratio if self.metrics else 1.0
        if self.difference <= _PARALLEL < abs(factor - 1):
            return f"it is {factor:.4g} times B"
        return f"{self.unequal} of {self.size} elements differ, relative difference {self.difference:.2g}"

    @property
    def difference(self) -> float:
        """The relative difference; infinite if the two cannot be compared."""
        return relative_difference(self.metrics) if self.fits else math.inf


@dataclass(slots=True)
class CallsWithSameBytes:
    """Calls that read the same bytes on both sides."""

    equal: int = 0
    """How many returned the same bytes."""
    elements: float = 0.0
    """How many elements other than zero these returned."""
    unequal: int = 0

    def add(self, tensor: Measured) -> None:
        """Count what such a call returned, unless its difference is a fact."""
        self.equal += not tensor.unequal
        self.elements += 0 if tensor.unequal else tensor.size * (1 - tensor.zeros)
        self.unequal += bool(tensor.unequal)

    def __str__(self) -> str:
        """Say how many are equal."""
        return f"with the same bytes, {self.equal} others like it are equal"

    def contradict(self, tensor: Measured) -> bool:
        """Return whether these show that the difference of a tensor is not rounding in another order."""
        if self.unequal or self.equal < _FEWEST_CALLS:
            return False
        share = min(tensor.unequal / max(tensor.size, 1), 1 - 1e-12)
        return self.elements * math.log1p(-share) < math.log(_CHANCE)


def without_scale(tensors: Sequence[Measured], parts: Sequence[StepPart]) -> dict[int, Measured]:
    """Return by number the gradients without the factor that all of them have, from that of the loss on.

    One side may divide the loss by the number of micro-batches, or multiply it against underflow, and the
    other one its gradients afterwards: parameters show whether they were. Where no gradient of a parameter
    has the factor, it is not undone: so a factor that each rank has its own of is reduced.
    """
    gradients = [each for each in tensors if parts[each.number].is_gradient]
    unequal = [each for each in gradients if each.unequal]
    parallel = _parallel(unequal)
    whole = [each for each in gradients if parts[each.number] is StepPart.PARAMETER_GRADIENT]
    if StepPart.PARAMETER not in parts or not _may_have_factor(whole, parallel):
        return {}
    factors = [metrics.norm_ratio for metrics in parallel.values()]
    factors += [each.averaged for each in unequal if each.averaged != 1.0]
    is_one = all(math.isclose(factor, factors[0], rel_tol=_PARALLEL) for factor in factors)
    if not factors or not is_one or math.isclose(factors[0], 1.0, rel_tol=_PARALLEL):
        return {}
    return {
        each.number: each._replace(metrics=parallel[each.number])
        for each in unequal
        if each.number in parallel
    }


def _may_have_factor(whole: Sequence[Measured], parallel: Container[int]) -> bool:
    """Return whether gradients of parameters may all have one factor: one does, and none is equal."""
    unequal = [each for each in whole if each.unequal]
    has_equal = any(each.zeros < 1 for each in whole if not each.unequal)
    return not has_equal and (not unequal or any(each.number in parallel for each in unequal))


def _parallel(tensors: Iterable[Measured]) -> dict[int, Metrics]:
    """Return what is left without a factor, which is little, of tensors other than means of parts."""
    rest = {
        each.number: but_for_factor(each.metrics)
        for each in tensors
        if each.metrics is not None and each.averaged == 1.0
    }
    return {number: metrics for number, metrics in rest.items() if metrics.relative_euclidean <= _PARALLEL}


def but_for_factor(metrics: Metrics, factor: float | None = None) -> Metrics:
    """Return what is left of a difference without a factor of A.

    Args:
        metrics: how far A is from B.
        factor: the factor; by default the one that leaves least, which `norm_ratio` then is.
    """
    found = metrics.cosine * metrics.norm_ratio
    off = 0.0 if factor is None else found / factor - 1
    rest = math.hypot(math.sqrt(max(1.0 - metrics.cosine**2, 0.0)), off)
    rmse = metrics.rmse * rest / metrics.relative_euclidean if metrics.relative_euclidean else 0.0
    ratio = found if factor is None else found / factor
    return replace(metrics, relative_euclidean=rest, rmse=rmse, norm_ratio=ratio)


def have_same_rows(
    a: npt.NDArray[Any], b: npt.NDArray[Any], length: int, limit: float, *, but_for_mean: bool = False
) -> bool:
    """Return whether rows of a length are the same within a limit, but in another order.

    They may differ by one row that is added to all, `but_for_mean`. Rows are sorted by a random projection,
    which keeps those together that differ by rounding.
    """
    if a.dtype.kind == "c":
        return False
    try:
        first, second = (np.asarray(side, np.float64).reshape(-1, length) for side in (a, b))
    except (ValueError, TypeError):  # no numbers
        return False
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return False
    size = np.linalg.norm(second)
    if but_for_mean:
        first, second = (side - side.mean(axis=0) for side in (first, second))
    if np.linalg.norm(first - second) <= limit * size:
        return False  # in the same order
    by = np.random.default_rng(0).standard_normal(length)
    first, second = (side[np.argsort(side @ by)] for side in (first, second))
    return bool(np.linalg.norm(first - second) <= limit * size)


def ways_of_rows(
    a: npt.NDArray[Any], b: npt.NDArray[Any]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], int]]:
    """Yield both sides and the length of rows: of samples, or of tokens, whichever comes first."""
    shape = b.shape
    for length in {math.prod(shape[1:]), shape[-1] if len(shape) > 1 else 1} - {0}:
        yield a, b, length
    if len(shape) > 1 and b.size:  # tokens first, then samples
        yield np.moveaxis(a, 1, 0), np.moveaxis(b, 1, 0), b.size // shape[1]


def real_numbers(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return values in one row; of complex ones, their parts."""
    row = np.ascontiguousarray(values).reshape(-1)
    return (row.view(row.real.dtype) if row.dtype.kind == "c" else row).astype(np.float64)


def repeats(values: npt.NDArray[Any], size: int) -> bool:
    """Return whether values are those of replicas, one after another, of which each has a size."""
    return size > 0 and values.size % size == 0 and bool((values.reshape(-1, size) == values[:size]).all())
