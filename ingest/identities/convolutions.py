"""Convolutions over any number of axes, forward, transposed and backward, as sums over places of the kernel.

Stride, dilation and padding are those that the shapes allow; groups follow from the channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ingest.identities.definition import Array, CallOperands, Expectation, wide
from ingest.identities.limits import sum_error
from ingest.identities.products import DIRECT, as_multiplied

#: Strides and dilations that are tried; a stride as long as the kernel makes patches.
_STRIDES, _DILATIONS = (1, 2, 3, 4), (1, 2, 4)
#: The most ways that are tried for one call.
_MOST = 24
#: What may be around what a convolution reads, but zeros; by the names of `np.pad`.
_Padding: TypeAlias = Literal["constant", "reflect", "wrap", "edge"]
_ZEROS: tuple[_Padding, ...] = ("constant",)
_PADDINGS: tuple[_Padding, ...] = ("reflect", "wrap", "edge")


def _last(axes: Iterable[slice | int]) -> Any:
    """Return an index of the last axes."""
    return (..., *axes)


class _Way(NamedTuple):
    """How a kernel goes along the axes of the longer side, which may be padded."""

    stride: int
    dilation: int
    low: tuple[int, ...]
    """Padding in front, by axis."""

    @property
    def told(self) -> str:
        """The attributes, as they are told."""
        return f"stride = {self.stride}" + f", dilation = {self.dilation}" * (self.dilation > 1)

    def parts(
        self, long: Array, short: Sequence[int], kernel: Sequence[int]
    ) -> Iterator[tuple[Array, tuple[int, ...]]]:
        """Yield for each place of the kernel the elements of the longer side that it meets, as a view.

        Args:
            long: (..., *axes), padded as `padded` does.
            short: the lengths of the axes of the shorter side.
            kernel: those of the kernel.
        """
        for place in np.ndindex(*kernel):
            begins = [at * self.dilation for at in place]
            ends = [
                begin + (length - 1) * self.stride + 1 for begin, length in zip(begins, short, strict=True)
            ]
            cut = (slice(begin, end, self.stride) for begin, end in zip(begins, ends, strict=True))
            yield long[_last(cut)], place

    def reach(self, short: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """Return how long the axes of the longer side are with all that the kernel meets."""
        return [
            (length - 1) * self.stride + self.dilation * (size - 1) + 1
            for length, size in zip(short, kernel, strict=True)
        ]

    def padded(
        self, long: Array, short: Sequence[int], kernel: Sequence[int], mode: _Padding = "constant"
    ) -> Array:
        """Return the longer side with padding, and without what no place of the kernel meets."""
        reach, axes = self.reach(short, kernel), long.shape[long.ndim - len(short) :]
        high = [max(need - low - own, 0) for need, low, own in zip(reach, self.low, axes, strict=True)]
        around = [(0, 0)] * (long.ndim - len(short)) + list(zip(self.low, high, strict=True))
        return np.asarray(np.pad(long, around, mode)[_last(slice(0, need) for need in reach)])


def _ways(long: Sequence[int], short: Sequence[int], kernel: Sequence[int]) -> list[_Way]:
    """Return the ways in which a kernel may go along axes of these lengths, plain ones first."""
    found: list[_Way] = []
    for dilation, stride in product(_DILATIONS, dict.fromkeys((*_STRIDES, *kernel[:1]))):
        if dilation > 1 and max(kernel) == 1:
            continue
        lows = []
        for own, other, size in zip(long, short, kernel, strict=True):
            total = (other - 1) * stride + dilation * (size - 1) + 1 - own
            same = {total // 2, *range(-(-total // 2), (total + stride - 1) // 2 + 1)}
            lows.append(
                sorted(
                    low for low in same if 0 <= low <= dilation * (size - 1) and total - low < size * dilation
                )
            )
        found += [_Way(stride, dilation, low) for low in product(*lows)]
    return found[:_MOST]


def _told(ways: list[_Way], told: str) -> list[_Way]:
    """Return the ways with these attributes; all if there are none."""
    return [way for way in ways if way.told == told] or ways


def _groups(of_long: int, of_short: int, kernel: tuple[int, ...]) -> int:
    """Return the number of groups that the channels of both sides are in; 0 if the kernel does not fit."""
    groups, rest = divmod(of_long, max(kernel[1], 1))
    return 0 if rest or not groups or kernel[0] != of_short or kernel[0] % groups else groups


def _grouped(channels: Array, groups: int) -> Array:
    """Return (batch, channel, *axes) as (batch, group, channel of it, *axes)."""
    return channels.reshape(len(channels), groups, -1, *channels.shape[2:])


def _multiplied(matrix: Array, columns: Array) -> Array:
    """Return (group, out, in) times (batch, group, in, *axes)."""
    flat = columns.reshape(*columns.shape[:3], -1)
    made = np.matmul(matrix, flat)
    return np.asarray(made.reshape(len(columns), *matrix.shape[:2], *columns.shape[3:]))


class _ConvolutionOperands(NamedTuple):
    """What a convolution read, in float64."""

    columns: Array
    """(batch, group, channel of it, *axes)"""
    weights: Array
    """(group, first channel of it, second channel, *kernel)"""
    bias: Array | float
    """(channel, *ones)"""


def _operands(call: CallOperands, out: Array, *, is_transposed: bool) -> _ConvolutionOperands | None:
    """Return what a call read; None if that is something else, or too large."""
    tensors = call.tensors
    if len(tensors) < 2 or out.ndim < 3 or any(each.ndim != out.ndim for each in tensors[:2]):
        return None
    bias = call.named.get("bias", tensors[2] if len(tensors) > 2 else None)
    if bias is not None and bias.size != out.shape[1]:
        return None
    x, w = (as_multiplied(each, out) for each in tensors[:2])
    long, short = (out, x) if is_transposed else (x, out)
    groups = _groups(long.shape[1], short.shape[1], w.shape)
    if not groups or short.size * w[0].size > DIRECT:
        return None
    added = 0.0 if bias is None else as_multiplied(bias, out).reshape(-1, *[1] * (out.ndim - 2))
    return _ConvolutionOperands(_grouped(x, groups), w.reshape(groups, len(w) // groups, *w.shape[1:]), added)


def convolution(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield (batch, channel, *axes); the kernel is (out, in of a group, *kernel)."""
    known = _operands(call, out, is_transposed=False)
    if known is None:
        return
    axes, kernel = out.shape[2:], known.weights.shape[3:]
    addends = known.weights[0, 0].size + 1
    ways = _ways(known.columns.shape[3:], axes, kernel)
    is_longer = all(2 * one < other for one, other in zip(kernel, known.columns.shape[3:], strict=True))
    around = [way for way in ways if any(way.low) and is_longer]
    for way, mode in chain(product(ways, _ZEROS), product(around, _PADDINGS)):
        long = way.padded(known.columns, axes, kernel, mode)
        value, size = (
            sum(
                (_multiplied(w[_last(place)], part) for part, place in way.parts(x, axes, kernel)),
                np.zeros(()),
            )
            for x, w in ((long, known.weights), (np.abs(long), np.abs(known.weights)))
        )
        error = sum_error(addends, unit) * (size.reshape(out.shape) + np.abs(known.bias))
        yield Expectation(value.reshape(out.shape) + known.bias, error, way.told)


def transposed_convolution(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield it, where each element of the input adds the kernel, which is (in, out of a group, *kernel)."""
    known = _operands(call, out, is_transposed=True)
    if known is None:
        return
    axes, kernel = known.columns.shape[3:], known.weights.shape[3:]
    addends = known.weights[0, :, 0].size + 1
    sides = [(each[0], each[1].swapaxes(1, 2)) for each in (known, (np.abs(known[0]), np.abs(known[1])))]
    for way in _ways(out.shape[2:], axes, kernel):
        reach = np.maximum(way.reach(axes, kernel), np.add(out.shape[2:], way.low))
        sums = np.zeros((2, len(out), *sides[0][1].shape[:2], *reach))
        for total, (columns, weights) in zip(sums, sides, strict=True):
            for part, place in way.parts(total, axes, kernel):
                part += _multiplied(weights[_last(place)], columns)  # noqa: PLW2901  (a view)
        cut = _last(slice(low, low + own) for low, own in zip(way.low, out.shape[2:], strict=True))
        value, size = (total[cut].reshape(out.shape) for total in sums)
        error = sum_error(addends, unit) * (size + np.abs(known.bias))
        yield Expectation(value + known.bias, error, way.told)


def kernel_gradient(
    x: Array, gradient: Array, shape: tuple[int, ...], unit: float, told: str = "", *, is_transposed: bool
) -> Iterator[Expectation]:
    """Yield what one call adds to the gradient of its kernel.

    Args:
        x: what it read, (batch, channel, *axes).
        gradient: that of what it wrote, (batch, channel, *axes).
        shape: of the kernel.
        unit: the roundoff of its arithmetic.
        told: the attributes that what it wrote tells; "" if they are not known.
        is_transposed: whether it is a transposed convolution.
    """
    if x.ndim != gradient.ndim or x.ndim != len(shape) or x.ndim < 3 or len(x) != len(gradient):
        return
    long, short = (gradient, x) if is_transposed else (x, gradient)
    groups = _groups(long.shape[1], short.shape[1], shape)
    if not groups or short.size * math.prod(shape[1:]) > DIRECT:
        return
    axes, kernel = short.shape[2:], shape[2:]
    columns = _grouped(wide(short), groups).reshape(len(short), groups, shape[0] // groups, -1)
    sizes, channels = np.abs(columns), _grouped(wide(long), groups)
    addends = len(short) * math.prod(axes)
    for way in _told(_ways(long.shape[2:], axes, kernel), told):
        value, size = np.zeros((2, groups, shape[0] // groups, *shape[1:]))
        for part, place in way.parts(way.padded(channels, axes, kernel), axes, kernel):
            flat = part.reshape(*part.shape[:3], -1).swapaxes(2, 3)
            value[_last(place)] = np.matmul(columns, flat).sum(0)
            size[_last(place)] = np.matmul(sizes, np.abs(flat)).sum(0)
        yield Expectation(value.reshape(shape), sum_error(addends + 1, unit) * size.reshape(shape), way.told)
