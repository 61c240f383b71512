"""How a whole tensor is put together from the pieces that ranks hold: an expression, and reading through it.

An expression is made of `Piece`, the tensor of one rank; `Joined`, parts one behind the other along an axis,
whole or in segments; `Summed`, parts added element by element; `Same`, parts that hold the same; and
`Shaped`, a part with other axes. They nest: with data and tensor parallelism, a tensor is joined from groups
each of which is joined itself.

Any range of the elements of the whole, in C order, is read without the rest, so memory is bounded by the
range and not by the tensor.

Also how far two arrays are apart, added up over ranges of large tensors; and whether one is a part of
another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.digest import digest

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


class Elements(Protocol):
    """The elements of one piece, in C order."""

    def read(self, start: int, stop: int) -> Array:
        """Return elements `start` to `stop`, 1-D."""


class WholeElements:
    """Elements that are in memory."""

    def __init__(self, values: Array) -> None:
        self._values = values.reshape(-1)

    def read(self, start: int, stop: int) -> Array:
        """Return elements `start` to `stop`, 1-D."""
        return self._values[start:stop]

    @property
    def digest(self) -> bytes:
        """The digest of the elements and of their type."""
        values = np.ascontiguousarray(self._values)
        return digest(values.view(np.uint8).data) + str(values.dtype).encode()


class AxisSegment(NamedTuple):
    """A stretch of the axis along which parts are joined."""

    part: int
    begin: int
    length: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The tensor of one rank."""

    number: int
    shape: Shape

    def read(self, pieces: Sequence[Elements], start: int, stop: int) -> Array:
        """Return elements `start` to `stop` of the whole, 1-D."""
        return pieces[self.number].read(start, stop)


@dataclass(frozen=True, slots=True)
class Joined:
    """Parts one behind the other along an axis; they agree in the lengths of all other axes."""

    parts: tuple[Assembly, ...]
    axis: int
    segments: tuple[AxisSegment, ...]
    """In order along the axis of the whole. What no segment has of a part is padding."""

    @property
    def shape(self) -> Shape:
        """The lengths of the axes of the whole."""
        lengths = list(self.parts[0].shape)
        lengths[self.axis] = sum(segment.length for segment in self.segments)
        return tuple(lengths)

    def read(self, pieces: Sequence[Elements], start: int, stop: int) -> Array:
        """Return elements `start` to `stop` of the whole, 1-D."""
        row = math.prod(self.shape[self.axis :])
        if stop <= start or not row:
            return self.parts[0].read(pieces, 0, 0)
        first_whole, last_whole = -(-start // row), stop // row
        if first_whole >= last_whole:  # at most the end of one row and the beginning of the next
            cut = min(first_whole * row, stop)
            spans = [(start, cut), (cut, stop)]
            return _concatenated([self._part_of_row(pieces, *span) for span in spans if span[0] < span[1]])
        blocks = []
        if start < first_whole * row:
            blocks.append(self._part_of_row(pieces, start, first_whole * row))
        blocks.append(self._rows(pieces, first_whole, last_whole))
        if last_whole * row < stop:
            blocks.append(self._part_of_row(pieces, last_whole * row, stop))
        return _concatenated(blocks)

    def _rows(self, pieces: Sequence[Elements], first: int, last: int) -> Array:
        """Return rows `first` to `last`: a row is all that has the same place on the axes before."""
        inner = math.prod(self.shape[self.axis + 1 :])
        read: dict[int, Array] = {}
        blocks = []
        for segment in self.segments:
            if segment.part not in read:
                part = self.parts[segment.part]
                length = part.shape[self.axis]
                values = part.read(pieces, first * length * inner, last * length * inner)
                read[segment.part] = values.reshape(last - first, length, inner)
            blocks.append(read[segment.part][:, segment.begin : segment.begin + segment.length])
        return np.concatenate(blocks, axis=1).reshape(-1)

    def _part_of_row(self, pieces: Sequence[Elements], start: int, stop: int) -> Array:
        inner = math.prod(self.shape[self.axis + 1 :])
        row = self.shape[self.axis] * inner
        number, begin = divmod(start, row)
        end = begin + stop - start
        blocks, position = [], 0
        for segment in self.segments:
            low, high = max(begin, position), min(end, position + segment.length * inner)
            if low < high:
                part = self.parts[segment.part]
                base = (number * part.shape[self.axis] + segment.begin) * inner - position
                blocks.append(part.read(pieces, base + low, base + high))
            position += segment.length * inner
        return _concatenated(blocks)


@dataclass(frozen=True, slots=True)
class Summed:
    """Parts of one shape that are added element by element, in float64, and multiplied by a factor."""

    parts: tuple[Assembly, ...]
    factor: float = 1.0
    """1 for a sum, 1 / number of parts for a mean."""

    @property
    def shape(self) -> Shape:
        """The lengths of the axes of the whole."""
        return self.parts[0].shape

    def read(self, pieces: Sequence[Elements], start: int, stop: int) -> Array:
        """Return elements `start` to `stop` of the whole, 1-D, float64 or complex128."""
        first = self.parts[0].read(pieces, start, stop)
        total = widened(first)
        with np.errstate(all="ignore"):
            for part in self.parts[1:]:
                total = total + widened(part.read(pieces, start, stop))
            return total * self.factor


@dataclass(frozen=True, slots=True)
class Same:
    """Parts that hold the same; the first is read."""

    parts: tuple[Assembly, ...]

    @property
    def shape(self) -> Shape:
        """The lengths of the axes of the whole."""
        return self.parts[0].shape

    def read(self, pieces: Sequence[Elements], start: int, stop: int) -> Array:
        """Return elements `start` to `stop` of the whole, 1-D."""
        return self.parts[0].read(pieces, start, stop)


@dataclass(frozen=True, slots=True)
class Shaped:
    """One part with the same elements in the same order, and other axes."""

    parts: tuple[Assembly]
    shape: Shape

    def read(self, pieces: Sequence[Elements], start: int, stop: int) -> Array:
        """Return elements `start` to `stop` of the whole, 1-D."""
        return self.parts[0].read(pieces, start, stop)


Assembly: TypeAlias = Piece | Joined | Summed | Same | Shaped


def joined(parts: Sequence[Assembly], axis: int, length: int | None = None) -> Joined:
    """Return parts one behind the other along an axis, cut off after `length` positions as padding."""
    left = sum(part.shape[axis] for part in parts) if length is None else length
    segments = []
    for number, part in enumerate(parts):
        taken = min(part.shape[axis], left)
        left -= taken
        segments.append(AxisSegment(number, 0, taken))
    return Joined(tuple(parts), axis, tuple(segments))


def interleaved(parts: Sequence[Assembly], axis: int, lengths: Sequence[int]) -> Joined:
    """Return parts each of which has blocks of these lengths: all first blocks, then all second ones, ...

    This is how a fused projection of queries, keys and values is cut: each rank has its share of all three.
    """
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]]).tolist()
    segments = [
        AxisSegment(number, begin, length)
        for begin, length in zip(begins, lengths, strict=True)
        for number in range(len(parts))
    ]
    return Joined(tuple(parts), axis, tuple(segments))


def zigzag(parts: Sequence[Assembly], axis: int, lengths: Sequence[int] = ()) -> Joined:
    """Return parts of two halves each, the first halves in order and the second ones in reverse.

    This is how context parallelism with causal attention cuts a sequence: rank r of n has chunks r and
    2n - 1 - r.

    Args:
        parts: of equal lengths.
        axis: along which they are cut.
        lengths: of several sequences that lie one behind the other, each of which is cut so; none for one.
    """
    segments: list[AxisSegment] = []
    begin = 0
    for length in lengths or (len(parts) * parts[0].shape[axis],):
        half = length // len(parts) // 2
        segments += [AxisSegment(number, begin, half) for number in range(len(parts))]
        segments += [AxisSegment(number, begin + half, half) for number in reversed(range(len(parts)))]
        begin += 2 * half
    return Joined(tuple(parts), axis, tuple(segments))


def replicas(assembly: Assembly) -> list[Assembly]:
    """Return the same tensor as every choice of replicas has it: place 0 of each group, then place 1, ..."""
    match assembly:
        case Piece():
            return [assembly]
        case Same():
            return [choice for part in assembly.parts for choice in replicas(part)]
        case Joined():
            choices = _aligned([replicas(part) for part in assembly.parts])
            return [Joined(parts, assembly.axis, assembly.segments) for parts in choices]
        case Summed():
            choices = _aligned([replicas(part) for part in assembly.parts])
            return [Summed(parts, assembly.factor) for parts in choices]
        case Shaped():
            return [Shaped((choice,), assembly.shape) for choice in replicas(assembly.parts[0])]


def pieces_read(assembly: Assembly) -> tuple[int, ...]:
    """Return the numbers of the pieces that are read, in order."""
    match assembly:
        case Piece(number=number):
            return (number,)
        case Joined():
            used = dict.fromkeys(segment.part for segment in assembly.segments if segment.length)
            parts = [assembly.parts[part] for part in used]
        case Summed():
            parts = list(assembly.parts)
        case _:
            parts = [assembly.parts[0]]
    return tuple(number for part in parts for number in pieces_read(part))


def _aligned(of_parts: Sequence[Sequence[Assembly]]) -> list[tuple[Assembly, ...]]:
    count = max(map(len, of_parts))
    return [tuple(choices[min(place, len(choices) - 1)] for choices in of_parts) for place in range(count)]


def widened(values: Array) -> Array:
    """Return numbers as float64, or complex128; themselves if they are."""
    if values.dtype in (np.float64, np.complex128):
        return values
    with np.errstate(all="ignore"):
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _concatenated(blocks: Sequence[Array]) -> Array:
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


@dataclass(slots=True)
class Agreement:
    """The distance of A from its reference B, over the ranges that were added so far."""

    distance: float = 0.0
    """The sum of |a - b|^2 over elements that are finite in both."""
    norm: float = 0.0
    """The sum of |b|^2 over these."""
    product: float = 0.0
    """The sum of the real part of a times the conjugate of b over these."""
    mismatches: int = 0
    """Elements that are NaN or infinite in only one of the two, or not the same infinity."""
    count: int = 0

    def add(self, a: Array, b: Array) -> None:
        """Add a range of both: 1-D arrays of one length."""
        x, y = widened(a), widened(b)
        self.count += x.size
        with np.errstate(all="ignore"):
            finite = np.isfinite(x) & np.isfinite(y)
            if not finite.all():
                odd = ~finite
                same = (x[odd] == y[odd]) | (np.isnan(x[odd]) & np.isnan(y[odd]))
                self.mismatches += int(odd.sum() - same.sum())
                x, y = x[finite], y[finite]
            difference = x - y
            self.distance += float(np.vdot(difference, difference).real)
            self.norm += float(np.vdot(y, y).real)
            self.product += float(np.vdot(y, x).real)

    @property
    def error(self) -> float:
        """|a - b| / |b|: 0 if nothing differs, infinite if only b is all zeros or NaN mismatch."""
        if self.mismatches:
            return math.inf
        if self.distance == 0.0:
            return 0.0
        error = math.sqrt(self.distance / self.norm) if self.norm else math.inf
        return math.inf if math.isnan(error) else error

    @property
    def factor(self) -> float:
        """The number by which b has to be multiplied to be closest to a; NaN if b is all zeros."""
        return self.product / self.norm if self.norm else math.nan

    @property
    def error_besides_factor(self) -> float:
        """The part of A that is not a multiple of B, relative to A: the same for sums and means of pieces."""
        norm_a = self.distance + 2 * self.product - self.norm
        if self.mismatches or not self.norm or norm_a <= 0.0:
            return self.error
        rest = 1.0 - self.product * self.product / (self.norm * norm_a)
        return math.sqrt(max(rest, 0.0))


#: The most elements that are looked at.
_LOOKED_AT = 64 * 1024


def part_error(part: Elements, shape: Shape, whole: Elements, whole_shape: Shape) -> float:
    """Return how far a tensor is from the closest part of another one; infinite if shapes rule that out."""
    errors = [math.inf]
    for candidate in _parts(shape, whole_shape):
        agreement = Agreement()
        stop = min(math.prod(shape), _LOOKED_AT)
        agreement.add(part.read(0, stop), candidate.read([whole], 0, stop))
        errors.append(agreement.error)
    return min(errors)


def _parts(shape: Shape, whole: Shape) -> list[Assembly]:
    if shape == whole:
        return [Piece(0, whole)]
    if len(shape) != len(whole):
        return []
    cut = [axis for axis, (own, all_of_it) in enumerate(zip(shape, whole, strict=True)) if own != all_of_it]
    if len(cut) != 1 or not shape[cut[0]] or whole[cut[0]] % shape[cut[0]]:
        return []
    axis, length = cut[0], shape[cut[0]]
    begins = range(0, whole[axis], length)
    return [Joined((Piece(0, whole),), axis, (AxisSegment(0, begin, length),)) for begin in begins]
