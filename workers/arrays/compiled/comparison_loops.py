"""Loops over the elements of two tensors, which numba compiles.

Several simple loops run over a block that stays in the L1 and L2 caches, so that the compiler can turn each
into vector instructions.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from workers.arrays.compiled.kernel_loops import compiled

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
def _errors(x: Any, y: Any, error: Any, relative: Any) -> Any:
    """Write the absolute and the relative error of each pair; count unequal pairs and small relative errors.

    The time is that of the divisions: counting costs nothing meanwhile.
    """
    # Counted as floats, so that all lanes have one width.
    unequal, within_1, within_5 = 0.0, 0.0, 0.0
    for i in range(x.size):
        u, v = np.float64(x[i]), np.float64(y[i])
        e = abs(u - v)
        error[i] = e
        w = abs(v)
        is_zero = w == 0.0
        # Without a branch: both quotients are computed, and one is selected.
        r = (e * _BY_EPSILON if is_zero else e) / (1.0 if is_zero else w)
        relative[i] = r
        unequal += 1.0 if e != 0.0 else 0.0
        within_1 += 1.0 if r < 0.001 else 0.0
        within_5 += 1.0 if r < 0.005 else 0.0
    return unequal, within_1, within_5


@compiled(_REORDER)
def _largest(bits: Any) -> Any:
    """Return the bits of the largest of some floats that are not negative, from their bits."""
    # These order as the numbers do, and the compiler does not turn maxima of floats into vector instructions.
    largest = bits[0]
    for i in range(bits.size):
        largest = max(largest, bits[i])
    return largest


@compiled(_REORDER)
def _total(relative: Any) -> Any:
    total = 0.0
    for i in range(relative.size):
        total += relative[i]
    return total


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
    unequal, within_1, within_5 = _errors(x, y, scratch[0, :n], scratch[1, :n])
    if aa + bb < _SMALL:
        for i in range(n):
            if x[i] != 0.0 or y[i] != 0.0:
                return False
    state[RELATIVE] += _total(scratch[1, :n])
    bits[0, 0], bits[1, 0] = _largest(bits[0, :n]), _largest(bits[1, :n])
    state[UNEQUAL] += unequal
    state[WITHIN_1] += within_1
    state[WITHIN_5] += within_5
    state[MAX_ABS] = max(state[MAX_ABS], scratch[0, 0])
    state[MAX_RELATIVE] = max(state[MAX_RELATIVE], scratch[1, 0])
    state[AA] += aa
    state[BB] += bb
    state[AB] += ab
    state[DD] += dd
    return True


@compiled(set())
def run(a: Any, b: Any, state: Any, scratch: Any, bits: Any) -> None:
    """Add pairs of elements to `state`; write to the first of the `bits` how many were added."""
    bits[0, 0] = _added(a, b, state, scratch, bits)


@compiled(set())
def _added(a: Any, b: Any, state: Any, scratch: Any, bits: Any) -> int:
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
