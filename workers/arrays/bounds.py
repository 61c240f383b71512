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


def lifted(plain: _Function, bounded: _Function | None = None) -> _Function:
    """Return `plain` for arguments that are known, and its bounded form if any is a column of bounds.

    Args:
        plain: a function of numbers, columns and conditions.
        bounded: its bounded form, if it is not one of `_OF_PLAIN`.
    """
    of_bounds = bounded or _OF_PLAIN[plain]

    def function(*values: Any) -> Any:
        return of_bounds(*values) if any(map(_is_bounded, values)) else plain(*values)

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


def _decision_of(value: Any) -> Decided:
    """Return where a value is true: a condition, or a number other than zero."""
    if isinstance(value, Decided):
        return value
    if isinstance(value, BoundedColumn):
        return _not(_equal(value, bounds_of(0.0)))
    known = np.asarray(value).astype(bool)
    return Decided(known, known)


def _add(a: BoundedColumn, b: BoundedColumn) -> BoundedColumn:
    return _between((a, b), (a.low + b.low, a.high + b.high))


def _divide(a: BoundedColumn, b: BoundedColumn) -> BoundedColumn:
    """Return the bounds of a quotient, which is vague if the divisor may be zero, unless it certainly is."""
    bounds = _between((a, b), tuple(np.divide(x, y) for x in a for y in b))
    return _vague_where((b.low <= 0) & (b.high >= 0) & (b.low != b.high) & ~np.isnan(a.low), bounds)


def _negate(a: BoundedColumn) -> BoundedColumn:
    return BoundedColumn(-a.high, -a.low)


def _magnitude(a: BoundedColumn) -> BoundedColumn:
    """Return the bounds of a magnitude: the lower one is zero if the number may be."""
    low, high = np.abs(a.low), np.abs(a.high)
    least = np.where((a.low <= 0) & (a.high >= 0), 0.0, np.minimum(low, high))
    return BoundedColumn(np.where(_is_vague(a), -np.inf, least), np.maximum(low, high))


def _less(a: BoundedColumn, b: BoundedColumn) -> Decided:
    return _compared(a, b, a.high < b.low, a.low < b.high)


def _at_most(a: BoundedColumn, b: BoundedColumn) -> Decided:
    return _compared(a, b, a.high <= b.low, a.low <= b.high)


def _equal(a: BoundedColumn, b: BoundedColumn) -> Decided:
    certain = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _compared(a, b, certain, (a.low <= b.high) & (b.low <= a.high))


def among(left: Any, values: Any) -> Decided:
    """Return where a number is one of others: a list of numbers and columns."""
    nowhere, a = np.zeros(1, bool), bounds_of(left)
    return reduce(_or, [_equal(a, bounds_of(value)) for value in values], Decided(nowhere, nowhere))


def not_among(left: Any, values: Any) -> Decided:
    """Return where a number is none of others."""
    return _not(among(left, values))


def _or(a: Decided, b: Decided) -> Decided:
    return Decided(a.certain | b.certain, a.possible | b.possible)


def _not(a: Decided) -> Decided:
    return Decided(~a.possible, ~a.certain)


def _given(convert: _Function, function: _Function) -> _Function:
    return lambda *values: function(*map(convert, values))


#: The bounded form of each function that a condition applies to known numbers.
_OF_NUMBERS: dict[_Function, _Function] = {
    operator.add: _add,
    operator.sub: lambda a, b: _add(a, _negate(b)),
    operator.mul: lambda a, b: _between((a, b), tuple(x * y for x in a for y in b)),
    np.divide: _divide,
    operator.neg: _negate,
    operator.pos: lambda a: a,
    np.abs: _magnitude,
    operator.eq: _equal,
    operator.ne: lambda a, b: _not(_equal(a, b)),
    operator.lt: _less,
    operator.le: _at_most,
    operator.gt: lambda a, b: _less(b, a),
    operator.ge: lambda a, b: _at_most(b, a),
}
#: The same of those that it applies to conditions.
_OF_CONDITIONS: dict[_Function, _Function] = {
    np.logical_not: _not,
    np.logical_and: lambda a, b: Decided(a.certain & b.certain, a.possible & b.possible),
    np.logical_or: _or,
}
_OF_PLAIN: dict[_Function, _Function] = {
    **{plain: _given(bounds_of, bounded) for plain, bounded in _OF_NUMBERS.items()},
    **{plain: _given(_decision_of, bounded) for plain, bounded in _OF_CONDITIONS.items()},
}


def _is_vague(bounds: BoundedColumn) -> Mask:
    return np.asarray((bounds.low == -np.inf) & (bounds.high == np.inf))


def _vague_where(vague: Any, bounds: BoundedColumn) -> BoundedColumn:
    return BoundedColumn(np.where(vague, -np.inf, bounds.low), np.where(vague, np.inf, bounds.high))


def _between(operands: tuple[BoundedColumn, ...], ends: tuple[Any, ...]) -> BoundedColumn:
    """Return the least and the greatest of results; vague where one is NaN though no operand is."""
    low, high = reduce(np.minimum, ends), reduce(np.maximum, ends)
    is_nan = reduce(np.logical_or, [np.isnan(bounds.low) | np.isnan(bounds.high) for bounds in operands])
    return _vague_where(np.isnan(low) & ~is_nan, BoundedColumn(low, high))


def _compared(a: BoundedColumn, b: BoundedColumn, certain: Any, possible: Any) -> Decided:
    vague = (_is_vague(a) | _is_vague(b)) & ~(np.isnan(a.low) | np.isnan(b.low))
    return Decided(np.asarray(certain & ~vague), np.asarray(possible | vague))
