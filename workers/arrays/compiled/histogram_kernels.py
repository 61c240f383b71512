"""Counts of elements by sign and power of two, by the compiled loops of `histogram_loops.py`.

They are compiled, kept and loaded as those of `kernels.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled import kernels
from workers.arrays.compiled.histogram_loops import BINS, LAST, LOWEST_EXPONENT, TABLES, WIDTH
from workers.arrays.compiled.kernels import address


class Counts:
    """How often each bin was counted so far."""

    def __init__(self) -> None:
        # One piece of memory, whose address is looked up once: what is done once for each tensor counts.
        in_tables, in_rows = TABLES * WIDTH // 2, 3 * (LAST + 2)
        memory = np.zeros(2 * BINS + in_tables + in_rows, np.int64)
        self.totals = memory[: 2 * BINS]
        """What was counted before."""
        self.tables = memory[2 * BINS : -in_rows].view(np.uint32).reshape(TABLES, WIDTH)
        """What was counted last; see `workers.arrays.compiled.histogram_loops`."""
        self.rows = memory[-in_rows:].reshape(LAST + 2, 3)
        """Where `sparse` writes."""
        self.totals_address = address(memory)
        self.tables_address = self.totals_address + self.totals.nbytes
        self.rows_address = self.tables_address + self.tables.nbytes
        self._in_tables = 0

    def begin(self) -> None:
        """Begin again; tables and totals are 0."""
        self._in_tables = 0

    def make_room(self, elements: int) -> None:
        """Make sure that no table overflows when this many elements are counted."""
        self._in_tables += elements
        if self._in_tables > _MOST_IN_TABLES:
            self.totals += self.tables[:, : 2 * BINS].sum(axis=0, dtype=np.int64)
            self.tables[:] = 0
            self._in_tables = elements


#: Those that nobody uses: making one takes longer than counting a small tensor.
_spare: list[Counts] = []


def take_counts() -> Counts:
    """Return counts of nothing. Whoever has used them up by `sparse` gives them back."""
    try:
        return _spare.pop()
    except IndexError:
        return Counts()


def give_back(counts: Counts) -> None:
    """Keep counts for the next tensor; `sparse` was the last that used them."""
    _spare.append(counts)


#: Elements that are counted in tables of 32 bits. Pieces are much smaller.
_MOST_IN_TABLES = 2**31


def count_floats(values: npt.NDArray[Any], counts: Counts) -> None:
    """Count elements.

    Args:
        values: 1-D and contiguous, float32 or float64 in native byte order.
        counts: what they are added to.
    """
    counts.make_room(values.size)
    size = values.dtype.itemsize
    bin_of = () if size == 4 else (_BIN_ADDRESS,)
    entry = kernels.entries()[f"histogram_f{size}"]
    entry(address(values), values.size, *bin_of, counts.tables_address)


def accumulate_floats(values: npt.NDArray[Any], state: npt.NDArray[np.float64], counts: Counts) -> None:
    """Add elements to their statistics, and count them while they are in the L1 cache.

    Args:
        values: 1-D and contiguous, float32 or float64 in native byte order.
        state: from `kernels.new_state`.
        counts: what they are added to.
    """
    counts.make_room(values.size)
    entry = kernels.entries()[f"counted_f{values.dtype.itemsize}"]
    scratch, tables = kernels.scratch_address(), counts.tables_address
    entry(address(values), values.size, scratch, address(state), _BIN_ADDRESS, tables)


def accumulate_many(
    values: npt.NDArray[Any], sizes: Sequence[int]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the statistics and the histograms of many tensors, in one call.

    Args:
        values: the tensors one after the other: 1-D and contiguous, float32 or float64 in native byte order.
        sizes: how many elements each has; few, so that the memory for all histograms is small.

    Returns:
        The state of each tensor, as `kernels.new_state` has it, (tensor, place); what `sparse` returns for
        each, one after the other; and how many rows of that each tensor has.
    """
    counts, ends = take_counts(), np.cumsum(sizes)
    states = np.tile(kernels.new_state(), (len(ends), 1))
    # A tensor has no more bins than elements.
    out, out_ends = np.empty((int(ends[-1]) + LAST + 2, 3), np.int64), np.empty_like(ends)
    kernels.entries()[f"counted_many_f{values.dtype.itemsize}"](
        address(values),
        len(ends),
        address(ends),
        kernels.scratch_address(),
        address(states),
        _BIN_ADDRESS,
        counts.tables_address,
        counts.totals_address,
        address(out),
        address(out_ends),
    )
    give_back(counts)
    return states, out[: out_ends[-1]].copy(), np.diff(out_ends, prepend=0)


def count_codes(occurrences: npt.NDArray[np.int64], values: npt.NDArray[np.float64], counts: Counts) -> None:
    """Count elements of one byte.

    Args:
        occurrences: how often each of the 256 bytes occurs.
        values: what each of them means, NaN and infinities included.
        counts: what they are added to.
    """
    bins = _BIN_OF_FLOAT64[((values.view(np.int64) - 1) >> 52) & 4095]
    counts.totals += np.bincount(bins, occurrences, minlength=2 * BINS).astype(np.int64)


def sparse(counts: Counts, pos_inf: int, neg_inf: int) -> npt.NDArray[np.int64]:
    """Return the bins that hold finite elements other than zero; nothing is counted afterwards.

    Args:
        counts: what was counted.
        pos_inf: how many of the counted elements are +Inf.
        neg_inf: how many are -Inf.

    Returns:
        (bin, 3): exponent, number of positive and of negative elements, by exponent. The magnitudes of an
        exponent e are in (2**e, 2**(e+1)].
    """
    entry = kernels.entries()["histogram_sparse"]
    entry(counts.tables_address, counts.totals_address, pos_inf, neg_inf, counts.rows_address)
    counts.begin()
    out = counts.rows
    return out[: out[-1, 0]].copy()


def _bins_of_float64() -> npt.NDArray[np.uint16]:
    """Return the bin of each combination of the upper 12 bits of a float64."""
    upper = np.arange(4096)
    exponent = upper & 2047
    magnitude = np.where(exponent == 2047, BINS - 1, np.clip(exponent - 1023 - LOWEST_EXPONENT, 0, LAST))
    return np.asarray(magnitude + BINS * (upper >> 11), np.uint16)


_BIN_OF_FLOAT64 = _bins_of_float64()
_BIN_ADDRESS = address(_BIN_OF_FLOAT64)
