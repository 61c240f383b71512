"""The values of a tensor as a picture."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workers.arrays.statistics import is_complex, widened_complex

#: The most pixels along one side; more values share a pixel.
MAX_SIDE = 320
_NAN, _POS, _NEG = 253, 254, 255
_STEPS = 253
#: From low to high: dark blue over teal to yellow, and blue over white to brown for values of both signs.
_ONE_SIGN = ((38, 24, 87), (49, 72, 158), (41, 120, 160), (42, 161, 137), (122, 200, 92), (247, 229, 90))
_BOTH_SIGNS = ((24, 60, 138), (92, 146, 210), (244, 244, 240), (224, 150, 74), (120, 62, 12))
_SPECIAL = ((225, 0, 84), (255, 106, 0), (130, 0, 200))


class Image(NamedTuple):
    """A picture of a matrix."""

    url: str
    """A `data:` URL."""
    width: int
    height: int
    low: float
    high: float
    has_both_signs: bool


def as_float(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return values as float64; of complex numbers, their absolute values."""
    if is_complex(values.dtype):
        values = np.abs(widened_complex(values))
    converted: npt.NDArray[np.float64] = np.asarray(values).astype(np.float64)
    return converted


def image_of(values: npt.NDArray[np.float64]) -> Image | None:
    """Return the picture of values of any shape, as a matrix; None if there are fewer than two.

    A pixel of several values is NaN or Inf if any of them is, else their mean.
    """
    if values.size < 2:
        return None
    pixels = _shrunk(_shrunk(_as_matrix(values), 0), 1)
    finite = pixels[np.isfinite(pixels)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    both = low < 0 < high
    begin, end = (-max(-low, high), max(-low, high)) if both else (low, high)
    span = end / 2 - begin / 2 or 1.0
    with np.errstate(invalid="ignore"):
        share = np.where(np.isfinite(pixels), (pixels / 2 - begin / 2) / span, 0)
    index = np.clip(np.round(share * (_STEPS - 1)), 0, _STEPS - 1).astype(np.uint8)
    index[np.isnan(pixels)], index[np.isposinf(pixels)], index[np.isneginf(pixels)] = _NAN, _POS, _NEG
    data = base64.b64encode(_png(index, _BOTH_SIGNS if both else _ONE_SIGN)).decode()
    return Image(f"data:image/png;base64,{data}", index.shape[1], index.shape[0], low, high, both)


def _as_matrix(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return values as a matrix that is not too long: the last axis across; a vector wraps."""
    if values.ndim >= 2 and values.shape[-1] > 1:
        return values.reshape(-1, values.shape[-1])
    across = values.size if values.size <= 64 else math.ceil(math.sqrt(values.size))
    return np.pad(values.reshape(-1), (0, -values.size % across)).reshape(-1, across)


def _shrunk(values: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    """Return the means of neighbours along an axis, at most `MAX_SIDE`; the last of them may be fewer."""
    length = values.shape[axis]
    starts = np.arange(0, length, math.ceil(length / MAX_SIDE))
    if starts.size == length:
        return values
    counts = np.diff(starts, append=length)
    with np.errstate(invalid="ignore", over="ignore"):
        # Divided first, or large numbers would become infinite. The mean of NaN is NaN, and that of Inf is
        # Inf: nothing hides behind its neighbours.
        shares = values / np.expand_dims(np.repeat(counts, counts), 1 - axis)
        means: npt.NDArray[np.float64] = np.add.reduceat(shares, starts, axis=axis)
        return means


def _png(index: npt.NDArray[np.uint8], stops: tuple[tuple[int, int, int], ...]) -> bytes:
    """Return a picture whose pixels are places in a palette between these colours, (row, column)."""
    places = np.linspace(0, len(stops) - 1, _STEPS)
    colours = [np.interp(places, range(len(stops)), part) for part in zip(*stops, strict=True)]
    palette = np.round(np.stack(colours, axis=1)).astype(np.uint8).tobytes() + bytes(sum(_SPECIAL, ()))
    height, width = index.shape
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette),
        (b"IDAT", zlib.compress(np.pad(index, ((0, 0), (1, 0))).tobytes(), 6)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
