"""The histogram of a tensor that arrives in blocks; see `workers.arrays.sketches.histogram`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled import histogram_kernels as kernels
from workers.arrays.compiled.kernels import accumulate

#: Integers that are converted at a time.
_BLOCK = 32 * 1024


class RunningHistogram:
    """The histogram of a tensor that arrives in blocks, which `RunningStatistics` passes on."""

    def __init__(self) -> None:
        self._counts = kernels.take_counts()

    def update(self, values: npt.NDArray[Any], state: npt.NDArray[np.float64]) -> None:
        """Add elements to the histogram, and to the state of their statistics.

        Integers of 64 bits above 2**53 are rounded to float64.

        Args:
            values: 1-D and contiguous, float32, float64 or integers, in native byte order.
            state: from `workers.arrays.compiled.kernels.new_state`.
        """
        if values.dtype.kind == "f":
            kernels.accumulate_floats(values, state, self._counts)
            return
        accumulate(values, state)
        for start in range(0, values.size, _BLOCK):
            kernels.count_floats(values[start : start + _BLOCK].astype(np.float64), self._counts)

    def update_codes(self, counts: npt.NDArray[np.int64], meanings: npt.NDArray[np.float64]) -> None:
        """Add elements of one byte: how often each of the 256 bytes occurs, and what each means."""
        kernels.count_codes(counts, meanings, self._counts)

    def rows(self, pos_inf: int, neg_inf: int) -> npt.NDArray[np.int64]:
        """Return the histogram as it is stored, (bin, 3); see `FIELDS`. Call it once.

        Args:
            pos_inf: how many of the elements are +Inf.
            neg_inf: how many are -Inf.
        """
        counts = self._counts
        del self._counts  # the next tensor uses it
        rows = kernels.sparse(counts, pos_inf, neg_inf)
        kernels.give_back(counts)
        return rows
