"""Statistics of elements, by compiled loops.

The loops of `workers.arrays.compiled.kernel_loops` are object code that `warm_up` makes, in six seconds, and
that later processes load: see `workers.arrays.compiled.kernel_objects`. Until then numba compiles them on
first use: see `workers.arrays.compiled.kernel_cache`. The last bits of sums depend on the processor that they
are compiled for, because its vector length decides the order of summation. Extremes and counts do not.
"""

from __future__ import annotations

import ctypes
import math
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled import kernel_loops
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
    loops = entries()
    if kind == "f":
        if loops is not None:
            loops[f"f{size}"](address(values), values.size, _scratch.address, address(state))
            return
        scratch = _scratch.memory
        kinds = values.dtype, f"i{size}", f"u{size}"
        views = (*(scratch.view(kind) for kind in kinds), scratch)
        kernel_loops.accumulate_floats(tuple(values.view(kind) for kind in kinds), views, state)
    elif loops is not None:
        loops[f"{kind}{size}"](address(values), values.size, address(state))
    else:
        kernel_loops.accumulate_integers(values, _COUNT_LIKE[size], state)


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
    loops = entries()
    if loops is not None:
        loops["codes"](address(codes), codes.size, address(values), _scratch.address, address(state))
    else:
        tables = _scratch.memory[: 4 * 256].view(np.int64).reshape(4, 256)
        kernel_loops.accumulate_codes(codes, values, tables, state)
    return _scratch.memory[:256].view(np.int64)


def widen_half(half: npt.NDArray[np.float16], out: npt.NDArray[np.float32]) -> None:
    """Write elements of float16 to `out` as float32, without loss and five times as fast as numpy."""
    loops = entries()
    if loops is not None:
        loops["widen_half"](address(half), half.size, address(out))
    else:
        kernel_loops.widen_half(half.view(np.uint16), out, out.view(np.int32))


#: By item size: empty arrays that tell the compiler in which type to count integers: one as wide as they are.
_COUNT_LIKE = {
    2: np.empty(0, np.int16),
    4: np.empty(0, np.int32),
    8: np.empty(0, np.int64),
}


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
def entries() -> dict[str, KernelEntry] | None:
    """Return the loops as object code, by kind and size of the elements; None if that was not made yet."""
    from workers.arrays.compiled import (
        kernel_objects,  # deferred: llvmlite takes 0.05 s, and readers need no loop
    )

    return kernel_objects.load()


def warm_up(*, apart: bool = False) -> None:
    """Load the loops, or compile them and keep them, for every type of element.

    Args:
        apart: compile them in another process, which goes on if this one ends first.
    """
    if entries() is None:
        from workers.arrays.compiled import kernel_objects  # deferred: as above

        if kernel_objects.make_apart() if apart else kernel_objects.make():
            entries.cache_clear()
        elif apart:
            return  # whoever needs a loop compiles it
    for code in ("f4", "f8", "i2", "u2", "i4", "u4", "i8", "u8"):
        accumulate(np.zeros(1, code), new_state())
    accumulate_codes(np.zeros(1, np.uint8), np.zeros(256), new_state())
    widen_half(np.zeros(1, np.float16), np.zeros(1, np.float32))
