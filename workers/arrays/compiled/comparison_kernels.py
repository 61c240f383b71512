"""Compiled loops over the elements of two tensors.

Several simple loops run over a block that stays in the L1 and L2 caches, so that the compiler can turn each
into vector instructions. `workers.arrays.compiled.kernels` says when they are compiled, and where they are
kept.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from workers.arrays.compiled.lazy_compile import compiled

#: Elements per block: the two arrays of float64 that are computed from it take 32 KiB.
BLOCK: Final = 2048
#: Sums may be reordered, which is what vector instructions do; NaN and infinities keep their meaning.
_REORDER: Final = {"reassoc", "contract", "nsz"}
#: If a sum of squares is larger than the first of these, or smaller than the second, squares may have
#: overflowed or vanished.
_LARGE: Final = 2.0**900
_SMALL: Final = 2.0**-900
#: The factor of |a| where b is 0: 1 / epsilon of float64.
_BY_EPSILON: Final = 2.0**52

#: What each place of the state holds: counts, the largest errors, the sum of relative errors, sums of squares
#: and products.
PLACES: Final = (
    *("nan", "inf", "unequal", "within_1", "within_5", "max_abs", "max_relative", "relative"),
    *("aa", "bb", "ab", "dd"),
)
#: The places by name, as numbers that compiled code can use.
NAN, INF, UNEQUAL, WITHIN_1, WITHIN_5, MAX_ABS, MAX_RELATIVE, RELATIVE, AA, BB, AB, DD = range(len(PLACES))


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
    added: int = _accumulate(a, b, state, scratch, scratch.view(np.int64))
    return added


def warm_up() -> None:
    """Compile, or load from the cache, every function for every type of element."""
    for code in ("f4", "f8"):
        accumulate(np.zeros(1, code), np.zeros(1, code), new_state(), np.zeros((4, BLOCK)))


@compiled(_REORDER)
def _sums(x: Any, y: Any) -> Any:
    """Return the sums of x x, y y, x y and (x - y) (x - y)."""
    aa, bb, ab, dd = 0.0, 0.0, 0.0, 0.0
    for i in range(x.size):
        u, v = np.float64(x[i]), np.float64(y[i])
        aa += u * u
        bb += v * v
        ab += u * v
        dd += (u - v) * (u - v)
    return aa, bb, ab, dd


@compiled(_REORDER)
def _errors(x: Any, y: Any, error: Any, relative: Any) -> None:
    """Write the absolute and the relative error of each pair."""
    for i in range(x.size):
        u, v = np.float64(x[i]), np.float64(y[i])
        e = abs(u - v)
        error[i] = e
        w = abs(v)
        is_zero = w == 0.0
        # Without a branch: both quotients are computed, and one is selected.
        relative[i] = (e * _BY_EPSILON if is_zero else e) / (1.0 if is_zero else w)


@compiled(_REORDER)
def _largest(bits: Any) -> Any:
    """Return the bits of the largest of some floats that are not negative, from their bits."""
    # These order as the numbers do, and the compiler does not turn maxima of floats into vector instructions.
    largest = bits[0]
    for i in range(bits.size):
        largest = max(largest, bits[i])
    return largest


@compiled(_REORDER)
def _counts(error: Any, relative: Any) -> Any:
    """Return the sum of relative errors, and the counts of unequal pairs and of small relative errors."""
    # Counted as floats, so that all lanes have one width.
    total, unequal, within_1, within_5 = 0.0, 0.0, 0.0, 0.0
    for i in range(error.size):
        total += relative[i]
    for i in range(error.size):
        unequal += 1.0 if error[i] != 0.0 else 0.0
        within_1 += 1.0 if relative[i] < 0.001 else 0.0
        within_5 += 1.0 if relative[i] < 0.005 else 0.0
    return total, unequal, within_1, within_5


@compiled(set())
def _split_finite(x: Any, y: Any, scratch: Any) -> Any:
    """Copy the pairs that are finite to `scratch`.

    Returns:
        The number of these pairs, of those with one NaN, and of those with different infinities.
    """
    n, nan, inf = 0, 0, 0
    for i in range(x.size):
        u, v = np.float64(x[i]), np.float64(y[i])
        if math.isfinite(u) and math.isfinite(v):
            scratch[2, n] = u
            scratch[3, n] = v
            n += 1
        elif math.isnan(u) != math.isnan(v):
            nan += 1
        elif not math.isnan(u) and u != v:
            inf += 1
    return n, nan, inf


@compiled(set())
def _add_finite(x: Any, y: Any, state: Any, scratch: Any, bits: Any) -> bool:
    """Add a block of finite pairs unless its squares overflow or vanish; return whether it was added."""
    n = x.size
    aa, bb, ab, dd = _sums(x, y)
    if not aa + bb + dd < _LARGE:
        return False
    _errors(x, y, scratch[0, :n], scratch[1, :n])
    if aa + bb < _SMALL:
        for i in range(n):
            if x[i] != 0.0 or y[i] != 0.0:
                return False
    largest = np.empty(2, np.float64)
    largest_bits = largest.view(np.int64)
    largest_bits[0] = _largest(bits[0, :n])
    largest_bits[1] = _largest(bits[1, :n])
    total, unequal, within_1, within_5 = _counts(scratch[0, :n], scratch[1, :n])
    state[UNEQUAL] += unequal
    state[WITHIN_1] += within_1
    state[WITHIN_5] += within_5
    state[MAX_ABS] = max(state[MAX_ABS], largest[0])
    state[MAX_RELATIVE] = max(state[MAX_RELATIVE], largest[1])
    state[RELATIVE] += total
    state[AA] += aa
    state[BB] += bb
    state[AB] += ab
    state[DD] += dd
    return True


@compiled(set())
def _accumulate(a: Any, b: Any, state: Any, scratch: Any, bits: Any) -> int:
    for start in range(0, a.size, BLOCK):
        x, y = a[start : start + BLOCK], b[start : start + BLOCK]
        if _add_finite(x, y, state, scratch, bits):
            continue
        n, nan, inf = _split_finite(x, y, scratch)
        if n == x.size:
            return start
        if n and not _add_finite(scratch[2, :n], scratch[3, :n], state, scratch, bits):
            return start
        same = x.size - n - nan - inf
        state[NAN] += nan
        state[INF] += inf
        state[UNEQUAL] += nan + inf
        state[WITHIN_1] += same
        state[WITHIN_5] += same
    size: int = a.size
    return size
