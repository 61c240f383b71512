"""Values as a picture: PNG with a palette, in which NaN and Inf have colours of their own."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: The most pixels along one side; more values share a pixel.
MAX_SIDE = 320
_NAN, _POS, _NEG = 253, 254, 255
_STEPS = 253
#: From low to high: dark blue over teal to yellow, and blue over white to brown for values of both signs.
_ONE_SIGN = ((38, 24, 87), (49, 72, 158), (41, 120, 160), (42, 161, 137), (122, 200, 92), (247, 229, 90))
_BOTH_SIGNS = ((24, 60, 138), (92, 146, 210), (244, 244, 240), (224, 150, 74), (120, 62, 12))
_SPECIAL = ((225, 0, 84), (255, 106, 0), (130, 0, 200))


@dataclass(frozen=True, slots=True)
class Image:
    """A picture of a matrix."""

    url: str
    """A `data:` URL."""
    width: int
    height: int
    low: float
    high: float
    has_both_signs: bool


def image_of(values: npt.NDArray[np.float64]) -> Image:
    """Return the picture of a matrix, (row, column).

    A pixel of several values is NaN or Inf if any of them is, else their mean.
    """
    pixels = _shrunk(values)
    finite = pixels[np.isfinite(pixels)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    both = low < 0 < high
    begin, end = (-max(-low, high), max(-low, high)) if both else (low, high)
    span = end / 2 - begin / 2 or 1.0
    with np.errstate(invalid="ignore"):
        share = np.where(np.isfinite(pixels), (pixels / 2 - begin / 2) / span, 0)
    index = np.clip(np.round(share * (_STEPS - 1)), 0, _STEPS - 1).astype(np.uint8)
    index[np.isnan(pixels)], index[np.isposinf(pixels)], index[np.isneginf(pixels)] = _NAN, _POS, _NEG
    data = _png(index, _palette(_BOTH_SIGNS if both else _ONE_SIGN))
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return Image(url, index.shape[1], index.shape[0], low, high, both)


def as_matrix(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return values of any shape as a matrix that is not too long: the last axis across; a vector wraps."""
    if values.ndim >= 2 and values.shape[-1] > 1:
        return values.reshape(-1, values.shape[-1])
    flat = values.reshape(-1)
    across = max(math.ceil(math.sqrt(flat.size)), 1)
    if flat.size <= 64:
        return flat.reshape(1, -1)
    padded = np.full(math.ceil(flat.size / across) * across, 0.0)
    padded[: flat.size] = flat
    return padded.reshape(-1, across)


def _shrunk(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return a matrix with at most `MAX_SIDE` rows and columns; a pixel is the mean of its values."""
    for axis in range(values.ndim):
        values = _shrunk_along(values, axis)
    return values


def _shrunk_along(values: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    """Return the means of neighbours along an axis; the last of them may be fewer."""
    length = values.shape[axis]
    together = math.ceil(length / MAX_SIDE)
    if together <= 1:
        return values
    starts = np.arange(0, length, together)
    counts = np.expand_dims(np.diff(starts, append=length), 1 - axis).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        # Divided first, or large numbers would become infinite. The mean of NaN is NaN, and that of Inf is
        # Inf: nothing hides behind its neighbours.
        shares = values / np.repeat(counts, counts.astype(np.int64).ravel(), axis=axis)
        means: npt.NDArray[np.float64] = np.add.reduceat(shares, starts, axis=axis)
        return means


def _palette(stops: tuple[tuple[int, int, int], ...]) -> bytes:
    places = np.linspace(0, len(stops) - 1, _STEPS)
    colours = np.stack(
        [np.interp(places, range(len(stops)), [stop[part] for stop in stops]) for part in range(3)], axis=1
    )
    return np.round(colours).astype(np.uint8).tobytes() + bytes(part for stop in _SPECIAL for part in stop)


def _png(index: npt.NDArray[np.uint8], palette: bytes) -> bytes:
    height, width = index.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), index], axis=1).tobytes()
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
        + _chunk(b"PLTE", palette)
        + _chunk(b"IDAT", zlib.compress(lines, 6))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
