"""The statistics of `workers.arrays.statistics`, computed by PyTorch on the device of a tensor.

The device computes the sums of pieces of 16 Mi elements, so that it needs little memory for them; they are
merged on the host by Chan's formula. Nothing here waits for the device.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ingest.recording.torch_module import Torch, TorchTensor
from workers.arrays.statistics import FIELDS

_PIECE = 1 << 24
#: What is computed of each piece, in order: counts of `FIELDS`, and what the others follow from.
_COUNTS = (
    "count",
    "nan_count",
    "pos_inf_count",
    "neg_inf_count",
    "zero_count",
    "negative_count",
    "positive_count",
)
_SUMS = (*_COUNTS, "min", "max", "mean", "m2")


def pieces_of(tensor: TorchTensor, torch: Torch) -> TorchTensor:
    """Compute the sums of each piece of a tensor, (piece, sum) of float64, on its device."""
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
    """Return the statistics in the order of `FIELDS`; NaN for those that are not computed here.

    Args:
        pieces: (piece, sum), from `pieces_of`.
        is_complex: whether the elements are complex, so that only some fields are known.
    """
    counts = pieces[:, : len(_COUNTS)].sum(axis=0)
    finite = pieces[:, 0] - pieces[:, 1:4].sum(axis=1)
    known = dict(zip(_COUNTS, counts.tolist(), strict=True))
    if finite.any():
        known |= _merged(pieces[finite > 0], finite[finite > 0], is_complex=is_complex)
    return tuple(known.get(name, math.nan) for name in FIELDS)


def _merged(
    pieces: npt.NDArray[np.float64], numbers: npt.NDArray[np.float64], *, is_complex: bool
) -> dict[str, float]:
    """Return the statistics of finite elements by name.

    Args:
        pieces: (piece, sum): those that have any.
        numbers: (piece,): how many each has.
        is_complex: whether they are complex.
    """
    low, high, means, m2 = (pieces[:, _SUMS.index(name)] for name in ("min", "max", "mean", "m2"))
    total = float(numbers.sum())
    mean = float((means * (numbers / total)).sum())
    deviations = float(m2.sum() + (numbers * (means - mean) ** 2).sum())
    l2_norm = math.sqrt(deviations + total * mean * mean)
    if is_complex:
        return {"l2_norm": l2_norm}
    std = math.sqrt(deviations / total)
    return {"min": float(low.min()), "max": float(high.max()), "mean": mean, "std": std, "l2_norm": l2_norm}
