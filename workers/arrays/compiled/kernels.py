"""Statistics of elements, by compiled loops.

The loops of `workers.arrays.compiled.kernel_loops` are object code that `warm_up` or the first use makes, in
half a minute, and that later processes load: see `workers.arrays.compiled.kernel_objects`. The last bits of
sums depend on the processor that they are compiled for, because its vector length decides the order of
summation. Extremes and counts do not.
"""

from __future__ import annotations

import ctypes
import math
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled.kernel_loops import MAX, MIN, PLACES, SCRATCH, UNIT

if TYPE_CHECKING:
    from workers.arrays.compiled.kernel_objects import KernelEntry

_EMPTY = np.zeros(len(PLACES))
_EMPTY[MIN], _EMPTY[MAX], _EMPTY[UNIT] = math.inf, -math.inf, 1.0


def new_state() -> npt.NDArray[np.float64]:
    """Return the state of no elements: shape (len(PLACES),)."""
    return _EMPTY.copy()


def accumulate(values: npt.NDArray[Any], state: npt.NDArray[np.float64]) -> None:
    """Add elements to `state`.

    Args:
        values: 1-D and contiguous, float32, float64, or integers of 16 to 64 bits, in native byte order.
        state: from `new_state`.
    """
    kind, size = values.dtype.kind, values.dtype.itemsize
    scratch = (_scratch.address,) if kind == "f" else ()
    entries()[f"{kind}{size}"](address(values), values.size, *scratch, address(state))


def accumulate_codes(
    codes: npt.NDArray[np.uint8], values: npt.NDArray[np.float64], state: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """Add elements of one byte to `state`; return how often each of the 256 bytes occurs.

    Args:
        codes: 1-D and contiguous, the bytes of the elements.
        values: what each of the 256 bytes means, NaN and infinities included. Squares of differences of
            finite values must be finite.
        state: from `new_state`.
    """
    entries()["codes"](address(codes), codes.size, address(values), _scratch.address, address(state))
    return _scratch.memory[:256].view(np.int64)


def widen_half(half: npt.NDArray[np.float16], out: npt.NDArray[np.float32]) -> None:
    """Write elements of float16 to `out` as float32, without loss and five times as fast as numpy."""
    entries()["widen_half"](address(half), half.size, address(out))


def address(array: npt.NDArray[Any]) -> int:
    """Return where the elements of a contiguous array begin."""
    try:
        return _address_of(_first_byte_of(array))  # takes a quarter of the time
    except (TypeError, ValueError):  # it is read-only, or empty
        place: int = array.__array_interface__["data"][0]
        return place


_address_of = ctypes.addressof
_first_byte_of: Any = ctypes.c_char.from_buffer  # its type stub does not know that arrays are buffers


class _Scratch(threading.local):
    """Memory for the loops, of each thread."""

    def __init__(self) -> None:
        self.memory = np.empty(SCRATCH, np.float64)
        self.address = address(self.memory)


_scratch = _Scratch()


def scratch_address() -> int:
    """Return where the memory of this thread for the loops begins: `SCRATCH` float64."""
    return _scratch.address


@cache
def entries() -> dict[str, KernelEntry]:
    """Return the loops as object code, by kind and size of the elements; if it was not made yet, make it."""
    with _lock:
        return _loaded()


_lock = threading.Lock()


@cache
def _loaded() -> dict[str, KernelEntry]:
    # Deferred: llvmlite takes 0.05 s, and readers need no loop.
    from workers.arrays.compiled import kernel_objects

    return kernel_objects.load()


def kept() -> dict[str, KernelEntry] | None:
    """Return what `entries` does; None if that would have to compile them: reading need not wait for it."""
    from workers.arrays.compiled import kernel_objects  # deferred: as above

    return entries() if entries.cache_info().currsize or kernel_objects.are_kept() else None


def warm_up() -> None:
    """Load the loops; if they were not made yet, make them first, or wait for a process that does."""
    entries()
