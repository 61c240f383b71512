"""Norms: over the last axes, over groups of channels, and over a batch; their `eps` is the one that holds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ingest.identities.definition import Array, CallOperands, Definition, Expectation, wide
from ingest.identities.limits import FEW, sum_error

#: The eps of norms that are tried; others are found from the rows.
EPS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-7, 1e-3)
_ROOT_OF_LARGEST = math.sqrt(np.finfo(np.float32).max)


def _read_by(call: CallOperands) -> tuple[Array, Array | None, Array | None]:
    """Return what a norm reads: its input, the weight and the bias."""
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
