"""Statistics, histograms and sums along axes of elements, by compiled loops.

The loops of the modules `*_loops` are object code that `warm_up` or the first use makes, in
half a minute, and that later processes load: see `workers.arrays.compiled.kernel_objects`. The last bits of
sums depend on the processor that they are compiled for, because its vector length decides the order of
summation. Extremes and counts do not.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled.kernel_loops import (
    BINS,
    LAST,
    LOWEST_EXPONENT,
    MAX,
    MIN,
    PLACES,
    SCRATCH,
    TABLES,
    UNIT,
    WIDTH,
)

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
    def __init__(self) -> None:
        self.memory = np.empty(SCRATCH, np.float64)
        self.address = address(self.memory)


_scratch = _Scratch()


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


class Counts:
    """How often each bin was counted so far."""

    def __init__(self) -> None:
        # One piece of memory, whose address is looked up once: what is done once for each tensor counts.
        in_tables, in_rows = TABLES * WIDTH // 2, 3 * (LAST + 2)
        memory = np.zeros(2 * BINS + in_tables + in_rows, np.int64)
        self.totals = memory[: 2 * BINS]
        self.tables = memory[2 * BINS : -in_rows].view(np.uint32).reshape(TABLES, WIDTH)
        """What was counted last; see `workers.arrays.compiled.kernel_loops`."""
        self.rows = memory[-in_rows:].reshape(LAST + 2, 3)
        """Where `sparse` writes."""
        self.totals_address = address(memory)
        self.tables_address = self.totals_address + self.totals.nbytes
        self.rows_address = self.tables_address + self.tables.nbytes
        self.in_tables = 0

    def make_room(self, elements: int) -> None:
        """Make sure that no table overflows when this many elements are counted."""
        self.in_tables += elements
        if self.in_tables > _MOST_IN_TABLES:
            self.totals += self.tables[:, : 2 * BINS].sum(axis=0, dtype=np.int64)
            self.tables[:] = 0
            self.in_tables = elements


#: Those that nobody uses: making one takes longer than counting a small tensor.
_spare: list[Counts] = []


def take_counts() -> Counts:
    """Return counts of nothing, which are used up by `sparse`."""
    try:
        return _spare.pop()
    except IndexError:
        return Counts()


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
    entry = entries()[f"histogram_f{size}"]
    entry(address(values), values.size, *bin_of, counts.tables_address)


def accumulate_floats(values: npt.NDArray[Any], state: npt.NDArray[np.float64], counts: Counts) -> None:
    """Add elements to their statistics, and count them while they are in the L1 cache.

    Args:
        values: 1-D and contiguous, float32 or float64 in native byte order.
        state: from `kernels.new_state`.
        counts: what they are added to.
    """
    counts.make_room(values.size)
    entry = entries()[f"counted_f{values.dtype.itemsize}"]
    entry(
        address(values),
        values.size,
        _scratch.address,
        address(state),
        _BIN_ADDRESS,
        counts.tables_address,
    )


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
    states = np.tile(new_state(), (len(ends), 1))
    # A tensor has no more bins than elements.
    out, out_ends = np.empty((int(ends[-1]) + LAST + 2, 3), np.int64), np.empty_like(ends)
    entries()[f"counted_many_f{values.dtype.itemsize}"](
        address(values),
        len(ends),
        address(ends),
        _scratch.address,
        address(states),
        _BIN_ADDRESS,
        counts.tables_address,
        counts.totals_address,
        address(out),
        address(out_ends),
    )
    _spare.append(counts)
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
    """Return the bins that hold finite elements other than zero. The next tensor uses these counts.

    Args:
        counts: what was counted.
        pos_inf: how many of the counted elements are +Inf.
        neg_inf: how many are -Inf.

    Returns:
        (bin, 3): exponent, number of positive and of negative elements, by exponent. The magnitudes of an
        exponent e are in (2**e, 2**(e+1)].
    """
    entry = entries()["histogram_sparse"]
    entry(counts.tables_address, counts.totals_address, pos_inf, neg_inf, counts.rows_address)
    rows = counts.rows[: counts.rows[-1, 0]].copy()
    counts.in_tables = 0
    _spare.append(counts)
    return rows


def _bins_of_float64() -> npt.NDArray[np.uint16]:
    """Return the bin of each combination of the upper 12 bits of a float64."""
    upper = np.arange(4096)
    exponent = upper & 2047
    magnitude = np.where(exponent == 2047, BINS - 1, np.clip(exponent - 1023 - LOWEST_EXPONENT, 0, LAST))
    return np.asarray(magnitude + BINS * (upper >> 11), np.uint16)


_BIN_OF_FLOAT64 = _bins_of_float64()
_BIN_ADDRESS = address(_BIN_OF_FLOAT64)
