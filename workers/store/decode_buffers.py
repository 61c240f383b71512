"""Memory for decoded chunks that is used again when nothing refers to what was decoded into it any more.

The system zeroes fresh memory page by page, which is saved where chunks are decoded, looked at once, and
dropped.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt


class DecodeBuffers:
    """Lends memory, and has it back when the last view of it is gone. Threads may share it.

    Whoever makes one decides with that how long memory is kept: it is freed with this object, and with the
    views that are left then. Memory: by size, as much as was lent at once, rounded up to a power of two.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[npt.NDArray[Any]]] = {}
        """By size, what is not lent."""

    def lend(self, nbytes: int) -> memoryview:
        """Return `nbytes` bytes with any content. Slices, and arrays made from these, are views of it."""
        size = 1 << max(nbytes - 1, 0).bit_length()
        free = self._free.setdefault(size, [])
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(size, np.uint8)
        lent = memory[:nbytes]
        # All views hold `lent`, which is made for this: when it goes, none of them is left.
        weakref.finalize(lent, free.append, memory).atexit = False
        return memoryview(lent)  # type: ignore[arg-type]  # it has a buffer

    @property
    def free_nbytes(self) -> int:
        """How many bytes are kept and not lent."""
        return sum(size * len(free) for size, free in self._free.items())
