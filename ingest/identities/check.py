"""Whether an output follows from its inputs: the judgement of one tensor against what it may be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import ml_dtypes
import numpy as np

from ingest.identities.definition import Array, Expectation, wide
from ingest.identities.difference import DifferenceShape, Level, named_difference, shape_of_difference
from ingest.identities.limits import limit_of, unit_roundoff

Status = Literal["holds", "fails", "open"]
#: The share of elements that may differ if the definition is that of the operator: a fault spares the rest.
_SPARED = 0.25
#: Differences up to this many limits are left open: definitions are exact, implementations are nearly so.
_DOUBT = 2.0
#: Of tensors with fewer values, such as masks, most elements are equal by chance.
_VARIED = 16
#: Elements that show first whether most are equal.
_SAMPLE = 256
#: Places that a fault has. Elements that differ here and there are those for which an approximation is worse.
_FAULTS = ("element", "row", "rows", "block")
#: What is the matter with what fails as a whole.
OTHERWISE = "operator computes something else"


@dataclass(frozen=True, slots=True)
class IdentityCheck:
    """What comparing a tensor with its definition showed."""

    status: Status
    told: str = ""
    """The attributes that the data showed; or why it is open."""
    times: float = 0.0
    """The largest difference in units of its limit; infinite for bits that should be equal."""
    difference: DifferenceShape | None = None
    """From what it should be to what it is."""
    cause: str = ""
    """What is the matter, if it fails as a whole."""

    @property
    def named(self) -> tuple[str, Level]:
        """What is the matter, and what backs that; "" and `open` if only the place is known."""
        cause = self.cause or (named_difference(self.difference) if self.difference is not None else "")
        return cause, Level.SHOWN if cause else Level.OPEN


def check(actual: Array, expected: Iterable[tuple[Expectation, bool]]) -> IdentityCheck:
    """Return whether a tensor is one of those that its definition allows.

    It fails if a definition holds for most of its elements, and for those that it does not hold they lie in
    one place. If nothing holds for most, the definition is in doubt, and not the tensor.

    Args:
        actual: the tensor.
        expected: what it may be, and whether that is with looser rounding: which counts if nothing else does.
    """
    try:
        with np.errstate(all="ignore"):  # what is not finite is not judged
            best, tried = _best(actual, expected)
    except (ValueError, IndexError):  # of a shard, or of another operator of the name
        return IdentityCheck("open", "shapes that do not fit")
    if best is None:
        reason = "does not follow from its definition as a whole" if tried else "other attributes"
        return IdentityCheck("open", reason)
    is_fault = best.difference is not None and best.difference.where in _FAULTS and best.times > _DOUBT
    if best.status == "holds" or is_fault:
        return best
    return replace(best, status="open", told="its definition holds nearly, and not in one place")


def _best(actual: Array, expected: Iterable[tuple[Expectation, bool]]) -> tuple[IdentityCheck | None, int]:
    """Return the comparison that holds, or else that in which the fewest differ; and how many there were."""
    best: IdentityCheck | None = None
    tried = 0
    for tried, (expectation, is_loose) in enumerate(expected, 1):
        if is_loose and best is not None:
            break
        if is_loose and _tells_nothing(actual, expectation):
            continue
        found = _compared(actual, expectation)
        if found.status == "holds":
            return found, tried
        if found.status == "fails" and (best is None or _elements(found) < _elements(best)):
            best = found
    return best, tried


def _tells_nothing(actual: Array, expectation: Expectation) -> bool:
    """Return whether rounding may be as large as most values are: then anything would hold."""
    value, error, _ = expectation
    return error is not None and bool(
        np.median(limit_of(value, error, actual.dtype)) > np.median(np.abs(value))
    )


def _elements(found: IdentityCheck) -> int:
    return found.difference.elements if found.difference is not None else 0


def _compared(actual: Array, expectation: Expectation) -> IdentityCheck:
    value, error, told = expectation
    if not _is_judged(expectation):
        return IdentityCheck("open")
    if error is None:
        if actual.dtype != value.dtype or _differs_at_random(actual, value):
            return IdentityCheck("open")
        bad, times = _words(actual) != _words(value), np.inf
    else:
        bad, times = _beyond(actual, value, error)
    if not bad.any():
        return IdentityCheck("holds", told)
    tells = _is_varied(_words(value)) if error is None else unit_roundoff(actual.dtype) > 0
    if np.count_nonzero(bad) > _SPARED * bad.size or not tells:
        return IdentityCheck("open")
    return IdentityCheck(
        "fails", told, times, shape_of_difference(_restored(actual, expectation, bad), actual)
    )


def _is_judged(expectation: Expectation) -> bool:
    """Return whether anything is finite of what may be rounded: the rest is not judged."""
    value, error, _ = expectation
    return error is None or not value.size or bool(np.isfinite(value).any())


def _restored(actual: Array, expectation: Expectation, bad: Array) -> Array:
    value, error, _ = expectation
    if error is None:
        return value
    should = np.where(bad, value, wide(actual)).astype(actual.dtype)
    if np.count_nonzero(bad) == 1:
        should[bad] = _with_one_bit(actual[bad], value[bad], limit_of(value, error, actual.dtype)[bad])
    return np.asarray(should)


def _differs_at_random(actual: Array, value: Array) -> bool:
    """Return whether more than half of some random elements differ: far more than a fault does."""
    if actual.size <= _SAMPLE or actual.shape != value.shape:
        return False
    places = np.unravel_index(_places(actual.size), actual.shape)
    return bool(np.mean(_words(actual[places]) != _words(value[places])) > 2 * _SPARED)


@lru_cache(maxsize=64)
def _places(size: int) -> Array:
    return np.random.default_rng(0).integers(size, size=_SAMPLE)


def _is_varied(words: Array) -> bool:
    least = min(_VARIED, words.size / 2)
    return np.unique(words.reshape(-1)[:_SAMPLE]).size >= least or np.unique(words).size >= least


def _with_one_bit(actual: Array, value: Array, limit: Array) -> Array:
    """Return an element with the one bit turned that makes it what it should be; if none does, that."""
    word = actual.view(f"u{actual.dtype.itemsize}")
    for bit in range(actual.dtype.itemsize * 8):
        turned = (word ^ word.dtype.type(1 << bit)).view(actual.dtype)
        if np.abs(wide(turned) - value) <= limit:
            return np.asarray(turned)
    return np.asarray(value.astype(actual.dtype))


def _words(array: Array) -> Array:
    known = array.dtype.itemsize in (1, 2, 4, 8) and array.dtype.kind not in "biu"
    return array.view(f"u{array.dtype.itemsize}") if known and array.ndim else array


def _beyond(actual: Array, value: Array, error: Array | float) -> tuple[Array, float]:
    """Return which elements are beyond their limits, and the largest difference in units of the limit.

    What was computed from NaN or infinity is not judged, and neither is what may overflow.
    """
    limit = limit_of(value, error, actual.dtype)
    difference = np.abs(wide(actual) - value)
    bad = np.asarray(~(difference <= limit))
    if bad.any():
        shown, allowed = value[bad], limit[bad]
        bad[bad] = np.isfinite(shown) & np.isfinite(allowed) & (np.abs(shown) + allowed < _largest(actual))
    beyond = np.nan_to_num(difference[bad], nan=np.inf)
    with np.errstate(divide="ignore"):
        return bad, float((beyond / limit[bad]).max(initial=0.0))


def _largest(array: Array) -> float:
    rounds = array.dtype.kind not in "biu"
    return float(ml_dtypes.finfo(array.dtype).max) if rounds else float("inf")  # type: ignore[no-untyped-call]


def of_guess(found: IdentityCheck) -> IdentityCheck:
    """Return a check of what a module is guessed to do, which fails by one element only.

    Rows may be set to zero because they are padding, or were dumped while a reduction was under way.
    """
    is_element = found.difference is not None and found.difference.where == "element"
    return found if found.status != "fails" or is_element else IdentityCheck("open", "holds for most of it")


def failing(difference: DifferenceShape, cause: str = "") -> IdentityCheck:
    """Return the check of what should be bit for bit the same."""
    return IdentityCheck("fails", "", np.inf, difference, cause or named_difference(difference) or OTHERWISE)
