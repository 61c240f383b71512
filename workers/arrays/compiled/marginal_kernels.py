"""Sums of a tensor along its axes, by compiled loops: see `workers.arrays.compiled.marginal_loops`.

The loops are compiled, kept and loaded as those of `workers.arrays.compiled.kernels` are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled import kernels
from workers.arrays.compiled.kernels import address
from workers.arrays.compiled.marginal_loops import HAS_NONZERO, PLAN_FIELDS, TOTAL, WANTED

#: Memory that nobody uses, and its address: what is done once for each tensor counts.
_spare: list[tuple[npt.NDArray[np.int64], int]] = []
#: Numbers in a piece of memory that is kept: at least, and at most.
_LEAST_SPARE, _MOST_SPARE = 16 * 1024, 64 * 1024


def _take_memory(size: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return memory of at least `size` numbers, of any values, and its address."""
    try:
        memory, place = _spare.pop()
    except IndexError:
        memory, place = np.empty(0, np.int64), 0
    if memory.size < size:
        memory = np.empty(max(size, _LEAST_SPARE), np.int64)
        return memory, address(memory)
    return memory, place


class LoopPlan:
    """How tensors of a shape are cut, for the loops; many tensors share it."""

    __slots__ = ("address", "memory_size", "places", "wanted")

    def __init__(self, places: npt.NDArray[np.int64]) -> None:
        """Take what `marginal_loops.WIDTH` describes, (PLAN_FIELDS,)."""
        self.places = places
        self.address = address(places)
        self.memory_size = PLAN_FIELDS + 3 * int(places[TOTAL])
        self.wanted = int(places[WANTED])


class Sums:
    """The sums of a tensor whose elements arrive in pieces, at least one."""

    __slots__ = ("_added", "_address", "_itemsize", "_memory", "_plan")

    def __init__(self, plan: LoopPlan, itemsize: int) -> None:
        """Begin with no elements; pieces are of `itemsize`, 4 or 8."""
        self._plan, self._itemsize = plan, itemsize
        self._memory, self._address = _take_memory(plan.memory_size)
        self._added = 0

    def add_piece(self, values: npt.NDArray[Any]) -> None:
        """Add the next elements of the tensor; see `marginal_loops.add_piece`.

        Args:
            values: 1-D and contiguous, float32 or float64 in native byte order, finite; at least one.
        """
        entry = kernels.entries()[_ADD[self._itemsize]]
        entry(address(values), values.size, self._plan.address, self._address, self._added)
        self._added += values.size

    def table(self) -> npt.NDArray[np.float32] | None:
        """Return the sums, norms and largest magnitudes, (3, place).

        It is None if all elements are zero. Call this once, because it adds up columns in place.
        """
        if self._added == 0:
            return None
        memory, out = self._memory, np.empty((3, self._plan.wanted), np.float32)
        kernels.entries()[_WRITE[self._itemsize]](self._address, address(out))
        has_nonzero = memory[HAS_NONZERO] != 0
        del self._memory  # the next tensor uses it
        if memory.size <= _MOST_SPARE:
            _spare.append((memory, self._address))
        return out if has_nonzero else None


#: The entries by size of the elements.
_ADD = {size: f"marginals_f{size}" for size in (4, 8)}
_WRITE = {size: f"marginals_table_f{size}" for size in (4, 8)}
