"""Products of matrices, convolutions and norms: what layers with parameters compute.

Products are recomputed, or checked by random projection if they are large. Convolutions go over any number of
axes, forward, transposed and backward, as sums over places of the kernel; stride, dilation and padding are
those that the shapes allow, and groups follow from the channels. The `eps` of norms is the one that holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ingest.identities.definition import Array, CallOperands, Definition, Expectation, wide
from ingest.identities.limits import FEW, sum_error, unit_roundoff

#: Products of more multiplications than this are checked by projection, and only what differs is recomputed.
DIRECT = 1 << 26
#: With arithmetic of this roundoff, float64, all of a product is recomputed.
_WHOLE = 2.0**-53
#: Projections that differ by this many times what half of them do are looked at.
_UNUSUAL = 6.0


def matrix_product(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """X @ w, with a bias or without, and whatever is transposed or flattened."""
    tensors = call.tensors
    if len(tensors) < 2 or not out.ndim:
        return
    bias = call.named.get("bias", tensors[2] if len(tensors) > 2 else None)
    if bias is not None and (bias.size != out.shape[-1] or len(tensors) > 3):
        return
    flags = [bool(each) for each in call.inputs if each.dtype.kind == "b" and not each.ndim]
    left, right = (as_multiplied(each, out) for each in tensors[:2])
    for a, b in _arrangements(left, right, out.shape, flags)[:2]:
        yield from _of_factors(a, b, bias, out, unit)


def as_multiplied(array: Array, like: Array) -> Array:
    """Return a factor in float64, first rounded to the type of another tensor if that is narrower.

    So autocast rounds what it multiplies to the type of what it returns.
    """
    is_wider = array.dtype.itemsize > like.dtype.itemsize and unit_roundoff(like.dtype) > 0
    return wide(array.astype(like.dtype) if is_wider else array)


def _arrangements(
    a: Array, b: Array, shape: tuple[int, ...], flags: Sequence[bool]
) -> list[tuple[Array, Array]]:
    """Return the factors as (batch, row, k) and (batch, k, column), those that multiply to the shape."""
    found = []
    columns = shape[-1]
    for batch in {1, math.prod(shape[:-2])}:
        rows = math.prod(shape) // max(batch * columns, 1)
        lengths = _inner_lengths(a, b, batch * rows, columns)
        if lengths is None or lengths[1] not in (1, batch):
            continue
        k, own = lengths
        lefts = (a.reshape(batch, rows, k), a.reshape(batch, k, rows).swapaxes(1, 2))
        rights = (b.reshape(own, k, columns), b.reshape(own, columns, k).swapaxes(1, 2))
        for left, right in product((0, 1), (0, 1)):
            if len(flags) != 2 or flags == [bool(left), bool(right)]:
                found.append((lefts[left], rights[right]))
    return found


def _inner_lengths(a: Array, b: Array, rows: int, columns: int) -> tuple[int, int] | None:
    """Return the length of the axis that is summed over, and how many matrices `b` is; None if none fits."""
    if not rows or not columns or a.size % rows or b.size % columns:
        return None
    k = a.size // rows
    own = b.size // max(k * columns, 1)
    return (k, own) if k and b.size == own * k * columns else None


def _of_factors(a: Array, b: Array, bias: Array | None, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield a product of factors; of a large one, only the rows and columns in which a projection differs."""
    batch, rows, k = a.shape
    columns = b.shape[2]
    added = np.zeros(1) if bias is None else as_multiplied(bias, out).reshape(-1)
    share = sum_error(k + 1, unit) + unit
    if batch * rows * columns * k <= DIRECT or unit <= _WHOLE:
        value = a @ b
        error = share * (np.abs(a) @ np.abs(b) + np.abs(added))  # sums may begin with the bias
        if bias is not None:
            error = error + unit_roundoff(out.dtype) * np.abs(value)
        yield Expectation((value + added).reshape(out.shape), error.reshape(out.shape))
        return
    actual = wide(out).reshape(batch, rows, columns)
    value, error = actual.copy(), np.zeros((batch, rows, columns))
    b = np.broadcast_to(b, (batch, k, columns))
    for number in range(batch):
        bad = _unlike(a[number], b[number], actual[number] - added, share + unit_roundoff(out.dtype))
        if bad is None or sum(map(len, bad)) * 4 > rows + columns:
            return
        for chosen in ((bad[0], slice(None)), (slice(None), bad[1])):
            left, right = a[number][chosen[0]], b[number][:, chosen[1]]
            value[number][chosen] = left @ right + np.broadcast_to(added, columns)[chosen[1]]
            error[number][chosen] = share * (np.abs(left) @ np.abs(right) + np.max(np.abs(added)))
    yield Expectation(value.reshape(out.shape), error.reshape(out.shape))


def _unlike(a: Array, b: Array, c: Array, share: float) -> tuple[Array, Array] | None:
    """Return the rows and the columns of c in which two random projections differ from those of a @ b.

    R. Freivalds, "Probabilistic machines can use less running time", IFIP 1977. What they name is recomputed:
    those that differ by more than the rounding that half of them show. None if half of them differ by more
    than rounding, both of the rows and of the columns: a wrong row changes all columns, which are looked at
    without it.

    Args:
        a: (row, k).
        b: (k, column).
        c: the product that was computed.
        share: how far an element may be from the exact one, as a share of the norms of its row and column.
    """
    rows = _projected(a, b, c, share)
    columns = _projected(b.T, a.T, c.T, share)
    if rows is not None and (columns is None or len(rows)):
        kept = np.setdiff1d(np.arange(len(a)), rows)
        columns = _projected(b.T, a[kept].T, c[kept].T, share)
    elif rows is None and columns is not None:
        kept = np.setdiff1d(np.arange(b.shape[1]), columns)
        rows = _projected(a, b[:, kept], c[:, kept], share)
    return None if rows is None or columns is None else (rows, columns)


def _projected(left: Array, right: Array, result: Array, share: float) -> Array | None:
    """Return the rows whose projections differ by far more than usual; None if those of half of them do.

    None, too, if rounding may be as large as the projections themselves: then they tell nothing.
    """
    if not right.size:
        return None
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (right.shape[1], 2))
    exact = left @ (right @ signs)
    residue = np.abs(exact - result @ signs).max(1)
    usual = np.median(residue)
    limit = 4 * share * np.median(np.linalg.norm(left, axis=1)) * np.linalg.norm(right)
    if usual > limit or limit > np.median(np.abs(exact)):
        return None
    return np.flatnonzero(~(residue <= _UNUSUAL * usual))


#: Strides and dilations that are tried; a stride as long as the kernel makes patches.
_STRIDES, _DILATIONS = (1, 2, 3, 4), (1, 2, 4)
#: The most ways that are tried for one call.
_MOST = 24
#: What may be around what a convolution reads, but zeros; by the names of `np.pad`.
_Padding: TypeAlias = Literal["constant", "reflect", "wrap", "edge"]
_ZEROS: tuple[_Padding, ...] = ("constant",)
_PADDINGS: tuple[_Padding, ...] = ("reflect", "wrap", "edge")


def _last(axes: Iterable[slice | int]) -> Any:
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


def _operands(
    call: CallOperands, out: Array, *, is_transposed: bool
) -> tuple[Array, Array, Array | float] | None:
    """Return what a convolution read, in float64; None if that is something else, or too large.

    Returns:
        (batch, group, channel of it, *axes); the kernels, (group, first channel of it, second channel,
        *kernel); and what is added, (channel, *ones).
    """
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
    return _grouped(x, groups), w.reshape(groups, len(w) // groups, *w.shape[1:]), added


def convolution(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield (batch, channel, *axes); the kernel is (out, in of a group, *kernel)."""
    known = _operands(call, out, is_transposed=False)
    if known is None:
        return
    columns, weights, bias = known
    axes, kernel = out.shape[2:], weights.shape[3:]
    addends = weights[0, 0].size + 1
    ways = _ways(columns.shape[3:], axes, kernel)
    is_longer = all(2 * one < other for one, other in zip(kernel, columns.shape[3:], strict=True))
    around = [way for way in ways if any(way.low) and is_longer]
    for way, mode in chain(product(ways, _ZEROS), product(around, _PADDINGS)):
        long = way.padded(columns, axes, kernel, mode)
        value, size = (
            sum(
                (_multiplied(w[_last(place)], part) for part, place in way.parts(x, axes, kernel)),
                np.zeros(()),
            )
            for x, w in ((long, weights), (np.abs(long), np.abs(weights)))
        )
        error = sum_error(addends, unit) * (size.reshape(out.shape) + np.abs(bias))
        yield Expectation(value.reshape(out.shape) + bias, error, way.told)


def transposed_convolution(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield it, where each element of the input adds the kernel, which is (in, out of a group, *kernel)."""
    known = _operands(call, out, is_transposed=True)
    if known is None:
        return
    columns, weights, bias = known
    axes, kernel = columns.shape[3:], weights.shape[3:]
    addends = weights[0, :, 0].size + 1
    turned = weights.swapaxes(1, 2)
    sides = ((columns, turned), (np.abs(columns), np.abs(turned)))
    for way in _ways(out.shape[2:], axes, kernel):
        reach = np.maximum(way.reach(axes, kernel), np.add(out.shape[2:], way.low))
        sums = np.zeros((2, len(out), *turned.shape[:2], *reach))
        for total, (x, w) in zip(sums, sides, strict=True):
            for part, place in way.parts(total, axes, kernel):
                part += _multiplied(w[_last(place)], x)  # noqa: PLW2901  (a view)
        cut = _last(slice(low, low + own) for low, own in zip(way.low, out.shape[2:], strict=True))
        value, size = (total[cut].reshape(out.shape) for total in sums)
        error = sum_error(addends, unit) * (size + np.abs(bias))
        yield Expectation(value + bias, error, way.told)


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


#: The eps of norms that are tried; others are found from the rows.
EPS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-7, 1e-3)
_ROOT_OF_LARGEST = math.sqrt(np.finfo(np.float32).max)


def _read_by(call: CallOperands) -> tuple[Array, Array | None, Array | None]:
    floats = [each for each in call.tensors if each.dtype.kind not in "iu"]
    weight = call.named.get("weight", floats[1] if len(floats) > 1 else None)
    return floats[0], weight, call.named.get("bias", floats[2] if len(floats) > 2 else None)


def norm_of_rows(*, centred: bool) -> Definition:
    """Return the definition of layer norm, or of RMS norm: along the last axes, with the eps that holds."""

    def definition(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
        if (
            not call.tensors
            or len(call.outputs[0].shape) == 0
            or call.tensors[0].size != call.outputs[0].size
        ):
            return
        x, weight, bias = _read_by(call)
        length = call.outputs[0].shape[-1] if weight is None else weight.size
        if not length or x.size % length:
            return
        rows = NormalisedRows(wide(x).reshape(-1, length), unit, centred=centred)
        if out is not call.outputs[0]:
            yield from rows.moments(out)
            return
        scale = 1.0 if weight is None else wide(weight).reshape(-1)
        shift = 0.0 if bias is None else wide(bias).reshape(-1)
        told = [float(each) for each in call.numbers if not each.ndim and each.dtype.kind not in "iu"]
        for eps in told or [*EPS, rows.eps_of(wide(out).reshape(-1, length), scale, shift)]:
            value, error = rows.normalised(eps)
            yield Expectation(
                (value * scale + shift).reshape(out.shape),
                (error * np.abs(scale) + 2 * unit * (np.abs(value * scale) + np.abs(shift))).reshape(
                    out.shape
                ),
                f"eps = {eps:.6g}",
            )

    return definition


def norm_of_groups(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Group and instance norm: over some channels of each sample, as many as the data show."""
    if not call.tensors or out.ndim < 3 or call.tensors[0].shape != out.shape:
        return
    channels = out.shape[1]
    for groups in (each for each in range(channels, 0, -1) if channels % each == 0):
        x = wide(call.tensors[0]).reshape(len(out) * groups, -1)
        yield from _of_channels(NormalisedRows(x, unit, centred=True), call, out, f"{groups} groups, ")


def norm_of_batch(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Batch norm by the statistics of the batch that was read."""
    if not call.tensors or out.ndim < 2 or call.tensors[0].shape != out.shape:
        return
    x = wide(call.tensors[0]).swapaxes(0, 1)
    yield from _of_channels(
        NormalisedRows(x.reshape(len(x), -1), unit, centred=True), call, out, "", by_channel=True
    )


def _of_channels(
    rows: NormalisedRows, call: CallOperands, out: Array, told: str, *, by_channel: bool = False
) -> Iterator[Expectation]:
    """Yield rows of (batch, channel, *axes), or of (channel, batch, *axes), scaled and shifted by channel."""
    _, weight, bias = _read_by(call)
    if any(each is not None and each.size != out.shape[1] for each in (weight, bias)):
        return
    form = (-1, *[1] * (out.ndim - 2))
    scale = 1.0 if weight is None else wide(weight).reshape(form)
    shift = 0.0 if bias is None else wide(bias).reshape(form)
    shape = (out.shape[1], len(out), *out.shape[2:]) if by_channel else out.shape

    def placed(values: Array) -> Array:
        return np.asarray(values.reshape(shape).swapaxes(0, 1) if by_channel else values.reshape(shape))

    for eps in EPS:
        value, error = map(placed, rows.normalised(eps))
        scaled = value * scale
        rounding = 2 * rows.unit * (np.abs(scaled) + np.abs(shift))
        yield Expectation(scaled + shift, error * np.abs(scale) + rounding, f"{told}eps = {eps:.6g}")


class NormalisedRows:
    """Rows that are normalised, and how well their moments are known."""

    def __init__(self, x: Array, unit: float, *, centred: bool) -> None:
        self.x, self.unit = x, unit
        self.sums = sum_error(x.shape[1], unit) + 2 * unit
        self.mean = x.mean(1, keepdims=True) if centred else np.zeros((len(x), 1))
        self.mean_error = self.sums * np.abs(x).mean(1, keepdims=True) * centred
        self.variance = ((x - self.mean) ** 2).mean(1, keepdims=True)
        # Some kernels subtract the square of the mean from the mean of squares.
        self.variance_error = self.sums * (2 * self.mean**2 + 2 * self.variance) + self.mean_error**2
        # Squares that overflow float32 are computed as infinity.
        self.variance_error[np.abs(x).max(1) > _ROOT_OF_LARGEST / math.sqrt(x.shape[1])] = np.inf

    def normalised(self, eps: float) -> tuple[Array, Array]:
        """Return the rows with mean 0 and variance 1, and their error."""
        scale = 1 / np.sqrt(self.variance + eps)
        value = (self.x - self.mean) * scale
        relative = self.variance_error / (self.variance + eps) / 2 + FEW * self.unit
        inner = self.mean_error + self.unit * (np.abs(self.x) + np.abs(self.mean))
        return value, inner * scale + np.abs(value) * relative

    def eps_of(self, out: Array, scale: Array | float, shift: Array | float) -> float:
        """Return the eps that most rows show; 0 if they show none."""
        centred = (self.x - self.mean) * scale
        shown = ((out - shift) * centred).sum(1) / (centred**2).sum(1)
        found = 1 / shown**2 - self.variance[:, 0]
        return max(float(np.median(found[np.isfinite(found)])), 0.0) if np.isfinite(found).any() else 0.0

    def moments(self, out: Array) -> Iterator[Expectation]:
        """Yield what a norm returns besides: the mean, the variance, and the root of its inverse."""
        if out.size == len(self.x):
            yield Expectation(self.mean.reshape(out.shape), self.mean_error.reshape(out.shape), "mean")
            yield Expectation(
                self.variance.reshape(out.shape), self.variance_error.reshape(out.shape), "variance"
            )
            for eps in EPS:
                value = 1 / np.sqrt(self.variance + eps)
                error = value * (self.variance_error / (self.variance + eps) / 2 + FEW * self.unit)
                yield Expectation(value.reshape(out.shape), error.reshape(out.shape), f"eps = {eps:.6g}")
