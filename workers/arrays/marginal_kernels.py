"""Sums of a tensor along its axes, by compiled loops: see `workers.arrays.marginal_loops`.

Compiled, kept and loaded as the loops of `workers.arrays.kernels` are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from workers.arrays import kernels, marginal_loops
from workers.arrays.kernels import address
from workers.arrays.marginal_loops import PLAN_FIELDS, TOTAL, WANTED

#: Memory that nobody uses, and its address: what is done once for each tensor counts.
_spare: list[tuple[npt.NDArray[np.int64], int]] = []
#: Numbers in a piece of memory that is kept: at least, and at most.
_LEAST_SPARE, _MOST_SPARE = 16 * 1024, 64 * 1024


def _take_memory(size: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return memory of at least `size` numbers, which are 0, and its address."""
    try:
        memory, place = _spare.pop()
    except IndexError:
        memory, place = np.zeros(0, np.int64), 0
    if memory.size < size:
        memory = np.zeros(max(size, _LEAST_SPARE), np.int64)
        return memory, address(memory)
    memory[:size] = 0
    return memory, place


class Sums:
    """The sums of a tensor whose elements arrive in pieces."""

    def __init__(self, plan: npt.NDArray[np.int64], itemsize: int) -> None:
        """Begin with no elements.

        Args:
            plan: how the tensor is cut, (PLAN_FIELDS,).
            itemsize: of the pieces, 4 or 8.
        """
        self._memory, self._address = _take_memory(PLAN_FIELDS + 3 * int(plan[TOTAL]))
        self._memory[:PLAN_FIELDS] = plan
        self._itemsize = itemsize

    def add_piece(self, values: npt.NDArray[Any], start: int) -> None:
        """Add a piece; see `marginal_loops.add_piece`.

        Args:
            values: 1-D and contiguous, float32 or float64 in native byte order, finite.
            start: which element of the tensor is the first.
        """
        entries, size = kernels.entries(), self._itemsize
        if entries is not None:
            entries[f"marginals_f{size}"](address(values), values.size, self._address, start)
        else:
            x = values, values.view(f"i{size}")
            marginal_loops.add_piece(x, start, self._memory[:PLAN_FIELDS], self._sums())

    def table(self) -> npt.NDArray[np.float32]:
        """Return what is wanted of the sums, (3, place): sums, norms, largest magnitudes.

        Call it once: it adds up columns in place.
        """
        entries, size = kernels.entries(), self._itemsize
        out = np.empty((3, self._memory[WANTED]), np.float32)
        if entries is not None:
            entries[f"marginals_table_f{size}"](self._address, address(out))
        else:
            sums = self._sums()
            marginal_loops.write_table(self._memory[:PLAN_FIELDS], sums, sums[2].view(f"f{size}"), out)
        memory = self._memory
        del self._memory  # the next tensor uses it
        if memory.size <= _MOST_SPARE:
            _spare.append((memory, self._address))
        return out

    def _sums(self) -> tuple[npt.NDArray[Any], ...]:
        """Return sums, sums of squares, and the bits of the largest magnitudes."""
        total = int(self._memory[TOTAL])
        own = self._memory[PLAN_FIELDS : PLAN_FIELDS + 3 * total]
        moments = own.view(np.float64)
        largest = own[2 * total :].view(f"i{self._itemsize}")[:total]
        return moments[:total], moments[total : 2 * total], largest
