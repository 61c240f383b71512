"""The shape of the difference between two tensors: where it lies, and what turns one into the other.

A flipped bit, a lost row, a tile of a broken kernel, a factor of the world size and a shift by one token
leave different traces. Each is told only if it explains every element that differs, exactly or within the
rounding of the type.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.identities.limits import unit_roundoff

Array: TypeAlias = npt.NDArray[Any]
Box: TypeAlias = tuple[tuple[int, int], ...]
Where = Literal["nowhere", "element", "row", "rows", "block", "scattered", "everywhere"]
How = Literal[
    "equal",
    "bit",
    "not finite",
    "zero",
    "sign",
    "rounding",
    "factor",
    "offset",
    "shift",
    "permutation",
    "other",
]
#: Rounding of the two values and of the factor between them, in units of roundoff.
_ROUNDINGS = 4.0
#: The least elements that show a factor or an offset: fewer are like one by chance.
_LEAST = 3
#: The largest share of an axis that is few rows.
_FEW = 0.25
#: The largest share of a tensor that is a block of it: elements here and there span more.
_PART = 0.75
#: Rows whose order is looked at, along each axis.
_ROWS = 1 << 16
#: Into how many parts along its last axis a tensor may be cut that ranks share.
_PARTS = 16


@dataclass(frozen=True, slots=True)
class DifferenceShape:
    """How a tensor `b` differs from a tensor `a` of the same shape and type."""

    where: Where
    """`row`: all of it at one position of `axis`. `rows`: at few positions of `axis`. `block`: fills most of
    a box that is smaller than the tensor. `scattered`: less than half of the elements, in no such place."""
    how: How
    """What turns `a` into `b` where they differ. `zero`: `b` is. `permutation`: the same values elsewhere."""
    elements: int
    """How many elements differ."""
    size: int
    """How many there are."""
    box: Box
    """The smallest box that holds those that differ: begin and end along each axis."""
    axis: int | None = None
    """Of a row, of rows, of a shift, and of a permutation of whole rows."""
    value: float | None = None
    """The factor, the offset, the number of the bit, or the positions of a shift."""
    largest: float = math.nan
    """The largest difference as a share of the largest magnitude in `a`."""

    def __bool__(self) -> bool:
        return self.elements > 0

    def __str__(self) -> str:
        """Describe it, such as `1 of 4096 elements, at [3, 17]: bit 12`."""
        if not self.elements:
            return "equal"
        ranges = [f"{begin}" if end == begin + 1 else f"{begin}:{end}" for begin, end in self.box]
        many = f"{self.elements} of {self.size} elements"
        place = "" if self.where in ("everywhere", "scattered") else f", {self.where} [{', '.join(ranges)}]"
        along = (
            f" along axis {self.axis}"
            if self.how in ("shift", "permutation") and self.axis is not None
            else ""
        )
        number = "" if self.value is None else f" {self.value:.6g}"
        how = "" if self.how == "other" else f": {self.how}{number}{along}"
        return many + place + how


def shape_of_difference(a: Array, b: Array, limit: Array | float = 0.0) -> DifferenceShape:
    """Return where and how `b` differs from `a`.

    Takes memory for some arrays of float64 of their size.

    Args:
        a: what it should be, of any type that casts to float64 or holds bits.
        b: what it is, of the same shape and type.
        limit: differences up to it do not count; it may be an array that broadcasts to the shape. With 0,
            equality is that of numbers, and NaN equals NaN.

    Raises:
        ValueError: shapes or types differ.
    """
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        raise ValueError(f"{a.dtype} {a.shape} against {b.dtype} {b.shape}")
    if not a.shape:
        a, b = a.reshape(1), b.reshape(1)
    differs = _differs(a, b, limit)
    count = int(np.count_nonzero(differs))
    if not count:
        return DifferenceShape("nowhere", "equal", 0, a.size, ())
    box, where, axis = _place(differs, count)
    with np.errstate(all="ignore"):
        old, new = a[differs], b[differs]
        how, value = _elementwise(old, new)
        if how == "other" and (moved := _moved(a, b, old, new)) is not None:
            how, axis, value = moved
        magnitudes = np.abs(_wide(a))
        largest = np.max(np.abs(_wide(new) - _wide(old)), initial=0.0) / np.max(magnitudes, initial=0.0)
    return DifferenceShape(where, how, count, a.size, box, axis, value, float(largest))


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _differs(a: Array, b: Array, limit: Array | float) -> npt.NDArray[np.bool_]:
    if isinstance(limit, float | int) and not limit:
        with np.errstate(invalid="ignore"):
            return np.asarray((a != b) & ~((a != a) & (b != b)))  # noqa: PLR0124  (NaN, of any type)
    with np.errstate(all="ignore"):
        wide_a, wide_b = _wide(a), _wide(b)
        is_same = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
        return np.asarray(~(is_same | (np.abs(wide_a - wide_b) <= limit)))


def _place(differs: npt.NDArray[np.bool_], count: int) -> tuple[Box, Where, int | None]:
    """Return the box that holds all that differs, the kind of the place, and its axis."""
    axes = range(differs.ndim)
    found = [np.flatnonzero(differs.any(axis=tuple({*axes} - {axis}))) for axis in axes]
    box = tuple((int(places[0]), int(places[-1]) + 1) for places in found)
    lengths = [end - begin for begin, end in box]
    long = [axis for axis in axes if differs.shape[axis] > 1]
    single = [axis for axis in long if lengths[axis] == 1]
    share, fewest = min((found[axis].size / differs.shape[axis], axis) for axis in axes)
    if count == 1:
        return box, "element", None
    if count * 2 > differs.size:
        return box, "everywhere", None
    if len(single) == 1 and len(long) > 1:
        return box, "row", single[0]
    if 2 * count >= math.prod(lengths) and math.prod(lengths) <= _PART * differs.size:
        return box, "block", None
    if len(long) > 1 and share <= _FEW and count * 2 >= share * differs.size:
        return box, "rows", fewest
    return box, "scattered", None


def _elementwise(old: Array, new: Array) -> tuple[How, float | None]:
    """Return what turns each of the elements that differ into the other one."""
    if (bit := _one_bit(old, new)) is not None:
        return "bit", bit
    a, b = _wide(old), _wide(new)
    if not np.isfinite(b).all():
        return "not finite", None
    if not b.any():
        return "zero", None
    if np.array_equal(b, -a):
        return "sign", None
    return ("other", None) if a.dtype.kind == "c" or not np.isfinite(a).all() else _linear(a, b, old.dtype)


def _linear(a: Array, b: Array, dtype: np.dtype[Any]) -> tuple[How, float | None]:
    """Return the number that all elements were multiplied by, or that was added to them."""
    slack = _ROUNDINGS * unit_roundoff(dtype)
    if slack and np.all(np.abs(b - a) <= slack * np.maximum(np.abs(a), np.abs(b))):
        return "rounding", None
    if np.unique(a).size < _LEAST:
        return "other", None
    tiny = float(np.finfo(np.float16).smallest_subnormal) if dtype == np.float16 else 0.0
    factor = float(a @ b / (a @ a))
    if np.all(np.abs(b - factor * a) <= slack * np.abs(b) + tiny):
        return "factor", factor
    offset = float(np.median(b - a))
    is_seen = abs(offset) > 4 * slack * np.max(np.abs(a))
    if is_seen and np.all(np.abs(b - a - offset) <= slack * np.maximum(np.abs(a), np.abs(b))):
        return "offset", offset
    return "other", None


def _one_bit(old: Array, new: Array) -> int | None:
    """Return the bit that alone differs, the same one in all elements; None if several bits do.

    If the sign or the lowest bit differs in several elements, this says less than `sign` and `rounding` do.
    """
    if old.dtype.kind not in "fiuV" or old.dtype.itemsize > 8:
        return None
    word = f"u{old.dtype.itemsize}"
    flipped = int(np.bitwise_or.reduce(old.view(word) ^ new.view(word)))
    bit = flipped.bit_length() - 1
    is_vague = old.size > 1 and bit in (0, old.dtype.itemsize * 8 - 1)
    return None if flipped != 1 << bit or is_vague else bit


def _moved(a: Array, b: Array, old: Array, new: Array) -> tuple[How, int | None, float | None] | None:
    """Return how the values of `a` moved within it to make `b`: along which axis, and how far."""
    for axis, length in enumerate(a.shape):
        if 1 < length <= _ROWS:
            shift = _shift(list(_rows(a, axis)), list(_rows(b, axis)))
            if shift is not None:
                return ("shift", axis, shift) if shift else ("permutation", axis, None)
    same = np.array_equal(np.sort(_wide(old)), np.sort(_wide(new)))
    return ("permutation", None, None) if same else None


def _rows(array: Array, axis: int) -> Iterator[bytes]:
    """Yield the bytes of each position of an axis; of a long one, its digest would do as well."""
    return (np.ascontiguousarray(row).tobytes() for row in np.moveaxis(array, axis, 0))


def _shift(a: list[bytes], b: list[bytes]) -> int | None:
    """Return how far rows moved: most of them, by the same; 0 if they are all there in another order."""
    place = {row: number for number, row in enumerate(a)}
    if len(place) * 2 <= len(a):
        return None  # many are alike: where one came from is not known
    moves = Counter(number - place[row] for number, row in enumerate(b) if row in place)
    steps, count = moves.most_common(1)[0] if moves else (0, 0)
    cyclic = count + moves.get(steps - len(a), 0) + moves.get(steps + len(a), 0)
    if steps and abs(steps) * 2 <= len(a) and cyclic >= len(a) - abs(steps):
        return steps
    return 0 if Counter(a) == Counter(b) else None


def shares_part(theirs: Sequence[Array], should: Array, actual: Array) -> bool:
    """Return whether a part along the last axis that is not what it should be is a part of another input."""
    other = theirs[0] if theirs else should
    if other.shape != should.shape or not should.ndim or np.array_equal(other, should):
        return False
    counts = [count for count in range(2, _PARTS + 1) if not should.shape[-1] % count]
    cut = ([np.split(each, count, -1) for each in (actual, should, other)] for count in counts)
    return any(_is_mixed(*parts) for parts in cut)


def _is_mixed(actual: Sequence[Array], should: Sequence[Array], other: Sequence[Array]) -> bool:
    wrong = [part for part, own in zip(actual, should, strict=True) if not np.array_equal(part, own)]
    return any(np.array_equal(part, one) for part in wrong for one in other)


class Level(StrEnum):
    """What backs a cause that an answer states."""

    SHOWN = "shown"
    """An identity of stored values holds, or fails by more than rounding; its numbers are given."""
    LIKELY = "likely"
    """Values of this run speak for it, and the reason is named; they do not exclude every other cause."""
    OPEN = "open"
    """Something is wrong at this place; the cause is not known, and none is stated."""


#: What a difference in such a place is called.
_PLACES = {"element": "one element", "row": "one row", "block": "one block"}


def named_difference(difference: DifferenceShape) -> str:
    """Return what a difference of few elements is called; "" if most of them differ."""
    if difference.where in _PLACES and difference.how in ("bit", "not finite"):
        return "flipped bit" if difference.how == "bit" else "NaN or Inf born"
    return _PLACES.get(difference.where, "")
