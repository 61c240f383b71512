"""Integers in the order of numbers: they make exact percentiles a matter of counting digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


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
    if dtype.kind == "u":
        return float(key)
    if dtype.kind == "i":
        return float(key - (1 << 63))
    size = dtype.itemsize
    sign = 1 << (8 * size - 1)
    bits = key ^ sign if key & sign else ~key & (2 * sign - 1)
    return float(np.frombuffer(bits.to_bytes(size, "little"), f"<f{size}")[0])


def are_numbers(dtype: np.dtype[Any]) -> bool:
    """Return whether elements of a type are numbers, and not text, bytes, structures or times."""
    return not issubclass(dtype.type, (np.flexible, np.datetime64, np.timedelta64))


def widened(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers in a type that has keys and holds them all: native float32, float64, int64 or uint64.

    Those of more bits are rounded to float64, and a finite one stays finite.
    """
    dtype = values.dtype.newbyteorder("=")
    if dtype.kind in "iub":
        return values.astype(np.uint64 if dtype == np.uint64 else np.int64)
    if dtype == np.float64:
        return values.astype(dtype, copy=False)
    if dtype.kind == "f" and dtype.itemsize > np.dtype(np.float64).itemsize:
        greatest = np.finfo(np.float64).max
        return np.where(np.isfinite(values), values.clip(-greatest, greatest), values).astype(np.float64)
    return values.astype(np.float32) if _holds(dtype) else values.astype(np.int64)


def _holds(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is of floating-point numbers; those of `ml_dtypes` say only `V`."""
    return dtype.kind == "f" or "float" in dtype.name
