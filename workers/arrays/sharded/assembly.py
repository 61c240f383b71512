"""How a whole tensor is put together from the pieces that ranks hold: an expression, and reading through it.

An expression is made of `Piece`, the tensor of one rank; `Joined`, parts one behind the other along an axis,
whole or in segments; `Summed`, parts added element by element; `Same`, parts that hold the same; and
`Shaped`, a part with other axes. They nest: with data and tensor parallelism, a tensor is joined from groups
each of which is joined itself.

Any range of the elements of the whole, in C order, is read without the rest, so memory is bounded by the
range and not by the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


class Elements(Protocol):
    """The elements of one piece, in C order."""

    def read(self, start: int, stop: int) -> Array:
        """Return elements `start` to `stop`, 1-D."""


class AxisSegment(NamedTuple):
    """A stretch of the axis along which parts are joined."""

    part: int
    """The number of the part that has it."""
    begin: int
    """Where in the part."""
    length: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The tensor of one rank."""

    number: int
    shape: Shape

    def read(self, pieces: Sequence[Elements], start: int, stop: int) -> Array:
        """Return elements `start` to `stop` of the whole, 1-D."""
        return pieces[self.number].read(start, stop)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The pieces that are read."""
        return (self.number,)


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

    @property
    def numbers(self) -> tuple[int, ...]:
        """The pieces that are read."""
        used = dict.fromkeys(segment.part for segment in self.segments if segment.length)
        return tuple(number for part in used for number in self.parts[part].numbers)

    def read(self, pieces: Sequence[Elements], start: int, stop: int) -> Array:
        """Return elements `start` to `stop` of the whole, 1-D."""
        row = math.prod(self.shape[self.axis :])
        if stop <= start or not row:
            return self._empty(pieces)
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

    def _empty(self, pieces: Sequence[Elements]) -> Array:
        return self.parts[0].read(pieces, 0, 0)

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
        """Return a range that lies within one row."""
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

    @property
    def numbers(self) -> tuple[int, ...]:
        """The pieces that are read."""
        return tuple(number for part in self.parts for number in part.numbers)

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

    @property
    def numbers(self) -> tuple[int, ...]:
        """The pieces that are read."""
        return self.parts[0].numbers

    def read(self, pieces: Sequence[Elements], start: int, stop: int) -> Array:
        """Return elements `start` to `stop` of the whole, 1-D."""
        return self.parts[0].read(pieces, start, stop)


@dataclass(frozen=True, slots=True)
class Shaped:
    """One part with the same elements in the same order, and other axes."""

    parts: tuple[Assembly]
    shape: Shape

    @property
    def numbers(self) -> tuple[int, ...]:
        """The pieces that are read."""
        return self.parts[0].numbers

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


def _aligned(of_parts: Sequence[Sequence[Assembly]]) -> list[tuple[Assembly, ...]]:
    count = max(map(len, of_parts))
    return [tuple(choices[min(place, len(choices) - 1)] for choices in of_parts) for place in range(count)]


def widened(values: Array) -> Array:
    """Return numbers as float64, or complex128."""
    with np.errstate(all="ignore"):
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _concatenated(blocks: Sequence[Array]) -> Array:
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
