"""Sums of a tensor along its axes, by compiled loops: see `workers.arrays.marginal_loops`.

Compiled, kept and loaded as the loops of `workers.arrays.kernels` are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from workers.arrays import kernels, marginal_loops
from workers.arrays.kernels import address


def add_piece(
    values: npt.NDArray[Any],
    start: int,
    plan: npt.NDArray[np.int64],
    moments: npt.NDArray[np.float64],
    largest: npt.NDArray[Any],
) -> None:
    """Add a piece of a tensor to its sums; see `marginal_loops.add_piece`.

    Args:
        values: 1-D and contiguous, float32 or float64 in native byte order, finite.
        start: which element of the tensor is the first.
        plan: how the tensor is cut.
        moments: (2, place).
        largest: (place,), signed integers as wide as the elements.
    """
    size = values.dtype.itemsize
    entries = kernels.entries()
    if entries is not None:
        entries[f"marginals_f{size}"](
            address(values), values.size, address(plan), start, address(moments), address(largest)
        )
    else:
        into = moments[0], moments[1], largest
        marginal_loops.add_piece((values, values.view(f"i{size}")), start, plan, into)


def table_of(
    plan: npt.NDArray[np.int64], moments: npt.NDArray[np.float64], largest: npt.NDArray[Any]
) -> npt.NDArray[np.float32]:
    """Return what is wanted of the sums of a complete tensor, (3, place): sums, norms, largest magnitudes.

    Call it once: it adds up columns in place.
    """
    size = largest.dtype.itemsize
    out = np.empty((3, plan[marginal_loops.WANTED]), np.float32)
    entries = kernels.entries()
    if entries is not None:
        entries[f"marginals_table_f{size}"](address(plan), address(moments), address(largest), address(out))
    else:
        into = moments[0], moments[1], largest
        marginal_loops.write_table(plan, into, largest.view(f"f{size}"), out)
    return out
