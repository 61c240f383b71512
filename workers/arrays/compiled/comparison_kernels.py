"""How two tensors differ, by compiled loops.

Like those of `workers.arrays.compiled.kernels`, they are object code, so that a comparison does not import
numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled import kernels
from workers.arrays.compiled.comparison_loops import PLACES


def new_state() -> npt.NDArray[np.float64]:
    """Return the state of no pairs of elements: shape (len(PLACES),)."""
    return np.zeros(len(PLACES))


def accumulate(
    a: npt.NDArray[Any], b: npt.NDArray[Any], state: npt.NDArray[np.float64], scratch: npt.NDArray[np.float64]
) -> int:
    """Add pairs of elements to `state`; return the number of pairs that were added.

    If it is less than the number of elements, squares of some of the next `BLOCK` elements overflow or vanish
    in float64, and none of that block was added.

    Args:
        a: 1-D and contiguous, float32 or float64 in native byte order.
        b: the same.
        state: from `new_state`.
        scratch: (4, BLOCK); overwritten.
    """
    places = [kernels.address(array) for array in (a, b, state, scratch)]
    kernels.entries()[f"compare_f{a.itemsize}_f{b.itemsize}"](*places, a.size)
    return int(scratch.view(np.int64)[0, 0])
