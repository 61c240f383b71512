"""What is in a tensor: where NaN and infinities lie, percentiles, a histogram; which bits of two differ.

Percentiles are exact for any number of elements, in a few passes and bounded memory. Each pass counts one
digit of 16 bits of the keys of all elements, integers in the order of the numbers: two passes for 32 bits,
four for 64. Of the element with a given rank, each pass so finds the next digit (a radix selection).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.reader.text import Plain, counted, value_text
from workers.arrays.statistics import divisor_for, is_complex, widened_complex
from workers.errors import DamagedStore, UsageError

if TYPE_CHECKING:
    from ingest.reader.tensor import Tensor


#: Reads all elements once, in 1-D pieces in the order of the dump.
Pieces: TypeAlias = Callable[[], Iterable[npt.NDArray[Any]]]
#: A basic index, as numpy takes it.
Index: TypeAlias = tuple[int | slice | EllipsisType, ...]

#: Axes with more positions are left out: a count for each takes 8 bytes.
_MAX_AXIS = 1_000_000
_WORST = 10
_DIGIT_BITS = 16
_DIGITS = 1 << _DIGIT_BITS
_PART = re.compile(r"(-?\d{1,18})|(-?\d{1,18})?:(-?\d{1,18})?(?::(-?\d{1,18})?)?")


@dataclass(frozen=True, slots=True)
class NonFinite:
    """One element that is NaN or infinite."""

    index: tuple[int, ...]
    value: str
    """`NaN`, `Inf` or `-Inf`; of a complex number, `NaN` if any part is."""


@dataclass(frozen=True, slots=True)
class AxisCounts:
    """At which positions of one axis the elements that are not finite lie."""

    axis: int
    length: int
    affected: int
    """The number of positions with at least one such element."""
    worst: tuple[tuple[int, int], ...]
    """The ten positions with the most such elements, and how many of them: most first, then by position."""


@dataclass(frozen=True, slots=True)
class Anatomy:
    """What is in one tensor."""

    elements: int
    nan: int
    pos_inf: int
    neg_inf: int
    first: tuple[NonFinite, ...]
    """The first of the elements that are NaN or infinite, in the order of the dump."""
    axes: tuple[AxisCounts, ...]
    """By axis, where those elements lie; empty if there are none. Axes over a million positions are left
    out."""
    percentiles: dict[float, float]
    """By percentage: the percentile of the finite elements, as `numpy.percentile` defines it, exactly.

    Empty for complex numbers, text, types that nothing decodes, and without a finite element.
    """
    edges: tuple[float, ...]
    """The limits of the bins of the histogram, one more than bins; empty as `percentiles`."""
    counts: tuple[int, ...]
    """How many finite elements each bin of the histogram has. The last bin includes its upper limit."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **{name: getattr(self, name) for name in ("elements", "nan", "pos_inf", "neg_inf")},
            "first_non_finite": [{"index": list(found.index), "value": found.value} for found in self.first],
            "axes": [
                asdict(axis) | {"worst": [{"position": place, "count": count} for place, count in axis.worst]}
                for axis in self.axes
            ],
            "percentiles": {f"{percent:g}": value for percent, value in self.percentiles.items()},
            "histogram": {"edges": list(self.edges), "counts": list(self.counts)},
        }


def examine(
    pieces: Pieces,
    shape: tuple[int, ...],
    *,
    order: str = "C",
    percents: Sequence[float] = (),
    bins: int = 20,
    positions: int = 10,
) -> Anatomy:
    """Examine the values of a tensor. Reads it up to six times.

    Memory: five pieces, 16 MB for two axes of a million positions, and what `percentiles` takes.

    Args:
        pieces: reads all elements.
        shape: the lengths of the axes.
        order: `C` if the last axis is the fastest one in the dump, or `F`.
        percents: the percentiles to compute, 0 to 100.
        bins: the number of bins of the histogram, at least 1.
        positions: how many of the elements that are not finite are listed.
    """
    scan = _Scan(shape, order, positions)
    for piece in pieces():
        scan.add(piece)
    edges, counts = np.zeros(0), np.zeros(0, np.int64)
    values: dict[float, float] = {}
    if scan.finite and scan.dtype is not None:
        edges, counts = _histogram(lambda: _finite(pieces()), scan.low, scan.high, bins)
        values = percentiles(lambda: _finite(pieces()), scan.finite, scan.dtype, percents)
    axes = (_axis_counts(axis, along) for axis, along in sorted(scan.counts.items()))
    return Anatomy(
        scan.elements,
        *(scan.nan, scan.pos_inf, scan.neg_inf),
        tuple(scan.first),
        tuple(axes),
        values,
        tuple(edges.tolist()),
        tuple(counts.tolist()),
    )


def _finite(pieces: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
    for piece in pieces:
        wide = widened(piece)
        yield wide[np.isfinite(wide)] if wide.dtype.kind == "f" else wide


@dataclass
class _Scan:
    """The first pass: counts, limits, and where elements are not finite."""

    shape: tuple[int, ...]
    order: str
    positions: int
    elements: int = 0
    finite: int = 0
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    low: float = math.inf
    high: float = -math.inf
    dtype: np.dtype[Any] | None = None
    """The type in which finite elements are compared; None if they are complex, or no numbers."""
    first: list[NonFinite] = field(default_factory=list)
    counts: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)
    """By axis: how many elements of each position are not finite."""

    def add(self, piece: npt.NDArray[Any]) -> None:
        begin = self.elements
        self.elements += len(piece)
        if is_complex(piece.dtype):
            piece = widened_complex(piece)
            # As in `workers.arrays.statistics`: NaN if either part is NaN, else +Inf if either is infinite.
            wide = np.where(np.isnan(piece), np.nan, np.where(np.isfinite(piece), 0.0, np.inf))
        elif issubclass(piece.dtype.type, (np.flexible, np.datetime64, np.timedelta64)):
            return  # text, bytes, structures or times
        else:
            wide = widened(piece)
            self.dtype = wide.dtype
        if wide.dtype.kind == "f":
            is_finite = np.isfinite(wide)
            places = np.flatnonzero(~is_finite)
            if len(places):
                self._add_non_finite(wide[places], places + begin)
            wide = wide[is_finite]
        self.finite += len(wide)
        if len(wide):
            self.low, self.high = min(self.low, float(wide.min())), max(self.high, float(wide.max()))

    def _add_non_finite(self, values: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> None:
        self.nan += int(np.isnan(values).sum())
        self.pos_inf += int((values == np.inf).sum())
        self.neg_inf += int((values == -np.inf).sum())
        order: Any = self.order
        index = np.unravel_index(places, self.shape, order) if self.shape else ()
        for number, value in enumerate(values[: max(self.positions - len(self.first), 0)].tolist()):
            self.first.append(NonFinite(tuple(int(along[number]) for along in index), value_text(value)))
        for axis, along in enumerate(index):
            length = self.shape[axis]
            if length <= _MAX_AXIS:
                counts = self.counts.setdefault(axis, np.zeros(length, np.int64))
                counts += np.bincount(along, minlength=length)


def _axis_counts(axis: int, counts: npt.NDArray[np.int64]) -> AxisCounts:
    order = np.argsort(-counts, kind="stable")[:_WORST].tolist()
    worst = tuple((place, int(counts[place])) for place in order if counts[place])
    return AxisCounts(axis, len(counts), int((counts > 0).sum()), worst)


def _histogram(
    read: Pieces, low: float, high: float, bins: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return limits and counts of bins of equal width; of a single value, one bin."""
    if low == high:
        return np.array([low, high]), np.array([sum(len(piece) for piece in read())])
    divisor = divisor_for(low, high)
    edges = np.linspace(low / divisor, high / divisor, bins + 1)
    counts = np.zeros(bins, np.int64)
    for piece in read():
        places = np.searchsorted(edges, piece.astype(np.float64) / divisor, side="right") - 1
        counts += np.bincount(places.clip(0, bins - 1), minlength=bins)
    return edges * divisor, counts


def percentiles(
    read: Pieces, count: int, dtype: np.dtype[Any], percents: Sequence[float]
) -> dict[float, float]:
    """Return percentiles as `numpy.percentile` does, with linear interpolation between two elements.

    Memory: one piece and its keys, and 512 KiB for each of the elements that are looked for: two for each
    percentile.

    Args:
        read: reads all finite elements, in pieces of one type that `widened` returns; called two or four
            times.
        count: how many elements there are.
        dtype: their type.
        percents: percentages, 0 to 100.
    """
    if not count or not percents:
        return {}
    places = {percent: percent / 100 * (count - 1) for percent in percents}
    ranks = sorted({rank for place in places.values() for rank in (math.floor(place), math.ceil(place))})
    keys = _keys_at(read, ranks, 8 * dtype.itemsize)
    values = {rank: value_of(key, dtype) for rank, key in zip(ranks, keys, strict=True)}

    def between(place: float) -> float:
        """Interpolate without an overflow between numbers of opposite signs."""
        low, high, share = values[math.floor(place)], values[math.ceil(place)], place % 1
        return low if low == high else low * (1 - share) + high * share

    return {percent: between(place) for percent, place in places.items()}


def _keys_at(read: Pieces, ranks: Sequence[int], bits: int) -> list[int]:
    """Return the keys of the elements at these places of the ascending order, digit by digit."""
    keys, rests = [0] * len(ranks), list(ranks)
    for shift in range(bits - _DIGIT_BITS, -1, -_DIGIT_BITS):
        counts = _count_digits(read, shift, bits, sorted(set(keys)))
        for number, key in enumerate(keys):
            up_to = np.cumsum(counts[key])
            digit = int(np.searchsorted(up_to, rests[number], side="right"))
            rests[number] -= int(up_to[digit - 1]) if digit else 0
            keys[number] = key << _DIGIT_BITS | digit
    return keys


def _count_digits(
    read: Pieces, shift: int, bits: int, prefixes: Sequence[int]
) -> dict[int, npt.NDArray[np.int64]]:
    """Return, for each beginning of keys, how many elements have each next digit, (digit,)."""
    counts = {prefix: np.zeros(_DIGITS, np.int64) for prefix in prefixes}
    for piece in read():
        keys = keys_of(piece)
        digits = ((keys >> keys.dtype.type(shift)).astype(np.uint64) & np.uint64(_DIGITS - 1)).astype(
            np.int64
        )
        if shift + _DIGIT_BITS == bits:
            counts[0] += np.bincount(digits, minlength=_DIGITS)
            continue
        above = keys >> keys.dtype.type(shift + _DIGIT_BITS)
        for prefix in prefixes:
            counts[prefix] += np.bincount(digits[above == above.dtype.type(prefix)], minlength=_DIGITS)
    return counts


def keys_of(values: npt.NDArray[Any]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Return an unsigned integer for each finite number, which are in the order of the numbers.

    Args:
        values: 1-D, of a type that `widened` returns.

    Returns:
        1-D, of 32 bits for float32 and of 64 bits for others.
    """
    if values.dtype.kind == "u":
        return values.astype(np.uint64, copy=False)
    if values.dtype.kind == "i":
        return values.view(np.uint64) ^ np.uint64(1 << 63)
    unsigned = np.dtype(f"u{values.dtype.itemsize}")
    bits = values.view(unsigned)
    sign = unsigned.type(1 << (8 * unsigned.itemsize - 1))
    return np.where(bits & sign, ~bits, bits | sign)


def value_of(key: int, dtype: np.dtype[Any]) -> float:
    """Return the number that has a key, for numbers of this type."""
    if dtype.kind in "ui":
        return float(key - (1 << 63) * (dtype.kind == "i"))
    size = dtype.itemsize
    sign = 1 << (8 * size - 1)
    bits = key ^ sign if key & sign else ~key & (2 * sign - 1)
    return float(np.frombuffer(bits.to_bytes(size, "little"), f"<f{size}")[0])


def widened(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers in a type that has keys and holds them all: native float32, float64, int64 or uint64.

    Those of more bits are rounded to float64, and a finite one stays finite.
    """
    dtype = values.dtype.newbyteorder("=")
    # Those of `ml_dtypes` say only `V`.
    if dtype.kind in "iub" or not (dtype.kind == "f" or "float" in dtype.name):
        return values.astype(np.uint64 if dtype == np.uint64 else np.int64)
    if dtype.itemsize > np.dtype(np.float64).itemsize:
        greatest = np.finfo(np.float64).max
        return np.where(np.isfinite(values), values.clip(-greatest, greatest), values).astype(np.float64)
    return values.astype(dtype, copy=False) if dtype == np.float64 else values.astype(np.float32)


def parse_index(text: str, shape: tuple[int, ...]) -> Index:
    """Return the index that a text such as `3:5,:`, `-1` or `...,0` stands for.

    Args:
        text: integers and slices as numpy has them, separated by commas.
        shape: the shape to which the index is applied.

    Raises:
        UsageError: a part is not an integer or slice, there are too many, or an integer is out of range.
    """
    parts = [part.strip() for part in text.strip().strip("[]").split(",")]
    if parts.count("...") > 1:
        raise UsageError(f"{text!r} has more than one '...'", hint="Write one of them.")
    index = tuple(_parse_part(part, text) for part in parts if part)
    try:
        _ = np.broadcast_to(np.int8(0), shape)[index]
    except IndexError as exc:
        raise UsageError(f"{text!r}: {exc}", hint=f"The shape is {shape}.") from None
    return index


def _parse_part(part: str, text: str) -> int | slice | EllipsisType:
    if part == "...":
        return Ellipsis
    match = _PART.fullmatch(part)
    if match is None or match[4] in ("0", "-0"):
        raise UsageError(
            f"{part!r} in {text!r} is not a position or slice",
            hint="Write positions and slices as numpy has them: '3:5,:', '-1', '...,0'.",
        )
    if match[1] is not None:
        return int(match[1])
    return slice(*(None if group is None else int(group) for group in match.group(2, 3, 4)))


#: How many of the elements that differ are listed.
_LISTED = 10


@dataclass(frozen=True, slots=True)
class DifferingElement:
    """One element that differs."""

    index: tuple[int, ...]
    first: str
    second: str
    bits: tuple[int, ...]
    """The bits that differ; 0 is the lowest one."""


@dataclass(frozen=True, slots=True)
class BitDifference(Plain):
    """How two tensors of one type and shape differ."""

    elements: int
    """How many elements differ."""
    bits: int
    """How many bits differ, over all elements."""
    first: tuple[DifferingElement, ...]
    """The first ten of these elements, in the order of the dump."""

    def __str__(self) -> str:
        """Describe it in one line."""
        if not self.first:
            return "no element differs"
        element = self.first[0]
        many = f"{counted(self.elements, 'element')}, {counted(self.bits, 'bit')}"
        numbers = ", ".join(map(str, element.bits[:8])) + ", ..." * (len(element.bits) > 8)
        return (
            f"{many}; first {list(element.index)}: {element.first} against {element.second} (bit {numbers})"
        )


def compare_bits(first: Tensor, second: Tensor) -> BitDifference | None:
    """Compare two tensors bit by bit.

    Returns None if a type or shape differs, or elements are not in the store, or are damaged there.
    """
    layouts = {(tensor.dtype, tensor.shape, tensor.is_fortran_order) for tensor in (first, second)}
    is_readable = all(tensor.is_dumped and not tensor.removed for tensor in (first, second))
    if not is_readable or len(layouts) > 1 or first.is_plain != second.is_plain:
        return None
    order = "F" if first.is_fortran_order else "C"
    try:
        return bit_difference(first.pieces(), second.pieces(), first.shape, order=order)
    except DamagedStore:
        return None  # `verify` names the damage


def bit_difference(
    first: Iterable[npt.NDArray[Any]],
    second: Iterable[npt.NDArray[Any]],
    shape: tuple[int, ...],
    *,
    order: str = "C",
) -> BitDifference:
    """Compare two tensors bit by bit.

    Memory: three pieces of each.

    Args:
        first: the elements of the first tensor, in 1-D pieces.
        second: the elements of the second tensor, of the same type, in pieces of the same lengths. The byte
            order may be another one.
        shape: the shape of both.
        order: `C` if the last axis is the fastest one in the pieces, or `F`.
    """
    elements = bits = done = 0
    listed: list[DifferingElement] = []
    for a, b in zip(first, second, strict=True):
        flipped = _bytes(a) ^ _bytes(b)
        places = np.flatnonzero(flipped.any(axis=1))
        elements += len(places)
        bits += int(np.bitwise_count(flipped[places]).sum()) if len(places) else 0
        for place in places[: _LISTED - len(listed)].tolist():
            index = np.unravel_index(done + place, shape, "F" if order == "F" else "C") if shape else ()
            numbers = np.flatnonzero(np.unpackbits(flipped[place], bitorder="little")).tolist()
            listed.append(
                DifferingElement(tuple(map(int, index)), str(a[place]), str(b[place]), tuple(numbers))
            )
        done += len(a)
    if done != math.prod(shape):
        message = f"{done} elements do not fill the shape {shape}"
        raise ValueError(message)
    return BitDifference(elements, bits, tuple(listed))


def _bytes(elements: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    little_endian = elements.astype(elements.dtype.newbyteorder("<"), order="C", copy=False)
    return little_endian.view(np.uint8).reshape(len(elements), elements.dtype.itemsize)
