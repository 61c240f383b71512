"""The statistics of `workers.arrays.statistics`, computed by PyTorch on the device of a tensor.

The device computes the sums of pieces of 16 Mi elements, so that it needs little memory for them; they are
merged on the host by Chan's formula. Nothing here waits for the device.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ingest.recording.torch_module import Torch, TorchTensor

_PIECE = 1 << 24
#: What is computed of each piece, in order.
_SUMS = ("count", "nan", "pos_inf", "neg_inf", "zero", "negative", "positive", "min", "max", "mean", "m2")


def pieces_of(tensor: TorchTensor, torch: Torch) -> TorchTensor:
    """Return what is computed of each piece of a tensor, (piece, sum) of float64, on its device."""
    flat = tensor.reshape(-1)
    pieces = [_sums(flat[begin : begin + _PIECE], torch) for begin in range(0, flat.numel(), _PIECE)]
    return torch.stack(pieces) if pieces else torch.zeros((0, len(_SUMS)), dtype=torch.float64)


def _sums(piece: TorchTensor, torch: Torch) -> TorchTensor:
    if piece.is_complex():
        return _sums_of_complex(piece, torch)
    if not piece.is_floating_point():
        values = piece.to(torch.float64)
    else:
        # bfloat16, half and float8 widen to float32 without loss.
        values = piece if piece.dtype in (torch.float32, torch.float64) else piece.to(torch.float32)
    finite = torch.isfinite(values)
    return _of_finite(
        values,
        finite,
        [torch.isnan(values), values == math.inf, values == -math.inf, values == 0, values < 0, values > 0],
        torch,
    )


def _sums_of_complex(piece: TorchTensor, torch: Torch) -> TorchTensor:
    wide = piece.to(torch.complex128)
    nan = torch.isnan(wide)
    finite = torch.isfinite(wide)
    magnitude = torch.where(finite, wide.abs(), math.nan)
    none = torch.zeros_like(nan)
    return _of_finite(magnitude, finite, [nan, ~finite & ~nan, none, magnitude == 0, none, none], torch)


def _of_finite(
    values: TorchTensor, finite: TorchTensor, masks: list[TorchTensor], torch: Torch
) -> TorchTensor:
    zero = torch.zeros((), dtype=values.dtype, device=values.device)
    count = finite.sum().to(torch.float64)
    # Sums in float64, of the distances from the mean: the sum of squares would cancel.
    mean = torch.where(finite, values, zero).sum(dtype=torch.float64) / count
    distances = torch.where(finite, values.to(torch.float64) - mean, zero.to(torch.float64))
    return torch.stack(
        [
            torch.full((), values.numel(), dtype=torch.float64, device=values.device),
            *(mask.sum().to(torch.float64) for mask in masks),
            torch.where(finite, values, math.inf).amin().to(torch.float64),
            torch.where(finite, values, -math.inf).amax().to(torch.float64),
            mean,
            distances.square().sum(),
        ]
    )


def merge_pieces(pieces: npt.NDArray[np.float64], *, is_complex: bool) -> tuple[float, ...]:
    """Return the statistics in the order of `FIELDS`.

    Args:
        pieces: (piece, sum), from `pieces_of`.
        is_complex: whether the elements are complex, so that only some fields are known.
    """
    counts = pieces[:, : _SUMS.index("min")].sum(axis=0)
    finite = pieces[:, 0] - pieces[:, 1:4].sum(axis=1)
    filled = pieces[finite > 0]
    numbers = finite[finite > 0]
    total = float(numbers.sum())
    if not total:
        return (*map(float, counts), *[math.nan] * 5)
    low, high, means, m2 = (filled[:, _SUMS.index(name)] for name in ("min", "max", "mean", "m2"))
    mean = float((means * (numbers / total)).sum())
    deviations = float(m2.sum() + (numbers * (means - mean) ** 2).sum())
    std, l2_norm = math.sqrt(deviations / total), math.sqrt(deviations + total * mean * mean)
    if is_complex:
        return (*map(float, counts), math.nan, math.nan, math.nan, math.nan, l2_norm)
    return (*map(float, counts), float(low.min()), float(high.max()), mean, std, l2_norm)
