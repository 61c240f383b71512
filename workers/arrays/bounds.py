"""Interval arithmetic of columns whose values are known between two bounds, and what follows for conditions.

Whatever the values between the bounds are, the result of an operation on them is between the bounds of its
result. Operations round to nearest, which keeps the order of numbers, so this holds for rounded results, too.
A result between -inf and inf is vague: it may also be NaN, which fulfils only `!=`. Nothing that is compared
with it is certain. NaN as both bounds is known to be NaN.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Mask: TypeAlias = npt.NDArray[np.bool_]
_Function: TypeAlias = Callable[..., Any]


class BoundedColumn(NamedTuple):
    """A column whose values are known to lie between two others; both are the same if they are known."""

    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


class Decided(NamedTuple):
    """Where a condition holds for all values between the bounds, and where it may: for some of them."""

    certain: Mask
    possible: Mask


def lifted(plain: _Function, bounded: _Function) -> _Function:
    """Return `plain` for arguments that are known, and `bounded` if any is a `BoundedColumn` or `Decided`."""

    def function(*values: Any) -> Any:
        return bounded(*values) if any(map(_is_bounded, values)) else plain(*values)

    return function


def _is_bounded(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_bounded, value))
    return isinstance(value, BoundedColumn | Decided)


def bounds_of(value: Any) -> BoundedColumn:
    """Return the bounds of a number or column; those of a condition are 0 and 1."""
    if isinstance(value, BoundedColumn):
        return value
    low, high = value if isinstance(value, Decided) else (value, value)
    return BoundedColumn(np.asarray(low, np.float64), np.asarray(high, np.float64))


def decision_of(value: Any) -> Decided:
    """Return where a value is true: a condition, or a number other than zero."""
    if isinstance(value, Decided):
        return value
    if isinstance(value, BoundedColumn):
        return differ(value, 0.0)
    known = np.asarray(value).astype(bool)
    return Decided(known, known)


def add(left: Any, right: Any) -> BoundedColumn:
    """Return the bounds of a sum."""
    a, b = bounds_of(left), bounds_of(right)
    return _between((a, b), (a.low + b.low, a.high + b.high))


def subtract(left: Any, right: Any) -> BoundedColumn:
    """Return the bounds of a difference."""
    return add(left, negate(right))


def multiply(left: Any, right: Any) -> BoundedColumn:
    """Return the bounds of a product."""
    a, b = bounds_of(left), bounds_of(right)
    return _between((a, b), tuple(x * y for x in a for y in b))


def divide(left: Any, right: Any) -> BoundedColumn:
    """Return the bounds of a quotient, which is vague if the divisor may be zero, unless it certainly is."""
    a, b = bounds_of(left), bounds_of(right)
    bounds = _between((a, b), tuple(np.divide(x, y) for x in a for y in b))
    vague = (b.low <= 0) & (b.high >= 0) & (b.low != b.high) & ~np.isnan(a.low)
    return BoundedColumn(np.where(vague, -np.inf, bounds.low), np.where(vague, np.inf, bounds.high))


def negate(value: Any) -> BoundedColumn:
    """Return the bounds of a number with the other sign."""
    low, high = bounds_of(value)
    return BoundedColumn(-high, -low)


def magnitude(value: Any) -> BoundedColumn:
    """Return the bounds of a magnitude: the lower one is zero if the number may be."""
    bounds = bounds_of(value)
    low, high = np.abs(bounds.low), np.abs(bounds.high)
    least = np.where((bounds.low <= 0) & (bounds.high >= 0), 0.0, np.minimum(low, high))
    return BoundedColumn(np.where(_is_vague(bounds), -np.inf, least), np.maximum(low, high))


def less(left: Any, right: Any) -> Decided:
    """Return where a number is less than another one."""
    a, b = bounds_of(left), bounds_of(right)
    return _compared(a, b, a.high < b.low, a.low < b.high)


def at_most(left: Any, right: Any) -> Decided:
    """Return where a number is at most another one."""
    a, b = bounds_of(left), bounds_of(right)
    return _compared(a, b, a.high <= b.low, a.low <= b.high)


def greater(left: Any, right: Any) -> Decided:
    """Return where a number is greater than another one."""
    return less(right, left)


def at_least(left: Any, right: Any) -> Decided:
    """Return where a number is at least another one."""
    return at_most(right, left)


def equal(left: Any, right: Any) -> Decided:
    """Return where a number is another one."""
    a, b = bounds_of(left), bounds_of(right)
    certain = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _compared(a, b, certain, (a.low <= b.high) & (b.low <= a.high))


def differ(left: Any, right: Any) -> Decided:
    """Return where a number is not another one."""
    return negation(equal(left, right))


def among(left: Any, values: Any) -> Decided:
    """Return where a number is one of others: a list of numbers and columns."""
    nowhere = np.zeros(1, bool)
    return reduce(either, [equal(left, value) for value in values], Decided(nowhere, nowhere))


def not_among(left: Any, values: Any) -> Decided:
    """Return where a number is none of others."""
    return negation(among(left, values))


def both(left: Any, right: Any) -> Decided:
    """Return where two conditions hold."""
    a, b = decision_of(left), decision_of(right)
    return Decided(a.certain & b.certain, a.possible & b.possible)


def either(left: Any, right: Any) -> Decided:
    """Return where one of two conditions holds, or both."""
    a, b = decision_of(left), decision_of(right)
    return Decided(a.certain | b.certain, a.possible | b.possible)


def negation(value: Any) -> Decided:
    """Return where a condition does not hold."""
    decided = decision_of(value)
    return Decided(~decided.possible, ~decided.certain)


#: The bounded function of each that a condition applies to known values.
OF_PLAIN: dict[_Function, _Function] = {
    operator.add: add,
    operator.sub: subtract,
    operator.mul: multiply,
    np.divide: divide,
    operator.neg: negate,
    operator.pos: bounds_of,
    np.abs: magnitude,
    np.logical_not: negation,
    np.logical_and: both,
    np.logical_or: either,
    operator.eq: equal,
    operator.ne: differ,
    operator.lt: less,
    operator.le: at_most,
    operator.gt: greater,
    operator.ge: at_least,
}


def _is_vague(bounds: BoundedColumn) -> Mask:
    return np.asarray((bounds.low == -np.inf) & (bounds.high == np.inf))


def _between(operands: tuple[BoundedColumn, ...], ends: tuple[Any, ...]) -> BoundedColumn:
    """Return the least and the greatest of results; vague where one is NaN though no operand is."""
    low, high = reduce(np.minimum, ends), reduce(np.maximum, ends)
    is_nan = reduce(np.logical_or, [np.isnan(bounds.low) | np.isnan(bounds.high) for bounds in operands])
    vague = np.isnan(low) & ~is_nan
    return BoundedColumn(np.where(vague, -np.inf, low), np.where(vague, np.inf, high))


def _compared(a: BoundedColumn, b: BoundedColumn, certain: Any, possible: Any) -> Decided:
    vague = (_is_vague(a) | _is_vague(b)) & ~(np.isnan(a.low) | np.isnan(b.low))
    return Decided(np.asarray(certain & ~vague), np.asarray(possible | vague))
