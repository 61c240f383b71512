"""How two tensors differ, by compiled loops.

Like those of `workers.arrays.compiled.kernels`, they are object code, so that a comparison does not import
numba; until that was made, numba compiles them on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled import comparison_loops, kernels
from workers.arrays.compiled.comparison_loops import BLOCK, PLACES


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
    words = scratch.view(np.int64)
    loops = kernels.entries()
    if loops is None:
        comparison_loops.run(a, b, state, scratch, words)
    else:
        places = [kernels.address(array) for array in (a, b, state, scratch)]
        loops[f"compare_f{a.itemsize}_f{b.itemsize}"](*places, a.size)
    return int(words[0, 0])


def warm_up() -> None:
    """Load the loops, or compile them and keep them, for every type of element."""
    kernels.warm_up()
    for code in ("f4", "f8"):
        accumulate(np.zeros(1, code), np.zeros(1, code), new_state(), np.zeros((4, BLOCK)))
