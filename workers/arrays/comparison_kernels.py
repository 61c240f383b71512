"""Compiled loops over the elements of two tensors; see `workers.arrays.kernels` for how they are compiled and kept.

Several simple loops over a block that stays in the L1 and L2 caches, so that the compiler can turn each into
vector instructions.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from workers.arrays.kernels import compiled

#: Elements per block: what is computed of it, two arrays of float64, takes 32 KiB.
BLOCK: Final = 2048
#: Sums may be reordered, which is what vector instructions do; NaN and infinities keep their meaning.
_REORDER: Final = {"reassoc", "contract", "nsz"}
#: Where sums of squares are beyond these, squares may have overflown or vanished.
_MANY: Final = 2.0**900
_FEW: Final = 2.0**-900
#: What |a| is multiplied by where b is 0: 1 / epsilon of float64.
_BY_EPSILON: Final = 2.0**52

#: Places in the state: counts, the largest errors, the sum of relative errors, sums of squares and products.
NAN, INF, UNEQUAL, WITHIN_1, WITHIN_5, MAX_ABS, MAX_RELATIVE, RELATIVE, AA, BB, AB, DD = range(12)


def new_state() -> npt.NDArray[np.float64]:
    """Return the state of a pair of which nothing has been taken in."""
    return np.zeros(12)


def accumulate(
    a: npt.NDArray[Any], b: npt.NDArray[Any], state: npt.NDArray[np.float64], scratch: npt.NDArray[np.float64]
) -> int:
    """Take elements of both into `state`; return how many were taken.

    Fewer than there are: the next `BLOCK` elements have squares that overflow or vanish in float64, and
    nothing of them was taken.

    Args:
        a: 1-D and contiguous, float32 or float64 in native byte order.
        b: the same.
        state: from `new_state`.
        scratch: (4, BLOCK); overwritten.
    """
    taken: int = _accumulate(a, b, state, scratch, scratch.view(np.int64))
    return taken


def warm_up() -> None:
    """Compile, or load from the cache."""
    for code in ("f4", "f8"):
        accumulate(np.zeros(1, code), np.zeros(1, code), new_state(), np.zeros((4, BLOCK)))


@compiled(_REORDER)
def _sums(x: Any, y: Any) -> Any:
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
    for i in range(x.size):
        u, v = np.float64(x[i]), np.float64(y[i])
        e = abs(u - v)
        error[i] = e
        w = abs(v)
        is_zero = w == 0.0
        # Not a branch: both are computed, and one is chosen.
        relative[i] = (e * _BY_EPSILON if is_zero else e) / (1.0 if is_zero else w)


@compiled(_REORDER)
def _largest(bits: Any) -> Any:
    # Bits of floats without a sign order as the numbers do; maxima of floats are not turned into vectors.
    largest = bits[0]
    for i in range(bits.size):
        largest = max(largest, bits[i])
    return largest


@compiled(_REORDER)
def _counts(error: Any, relative: Any) -> Any:
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
def _set_apart(x: Any, y: Any, scratch: Any) -> Any:
    """Copy what is finite in both to `scratch`; return how many these are, and the counts of the others."""
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
def _take(x: Any, y: Any, state: Any, scratch: Any, bits: Any) -> bool:
    """Take a block of finite elements, if its squares are neither too many nor too few."""
    n = x.size
    aa, bb, ab, dd = _sums(x, y)
    if not aa + bb + dd < _MANY:
        return False
    _errors(x, y, scratch[0, :n], scratch[1, :n])
    if aa + bb < _FEW:
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
        if _take(x, y, state, scratch, bits):
            continue
        n, nan, inf = _set_apart(x, y, scratch)
        if n == x.size:
            return start
        if n and not _take(scratch[2, :n], scratch[3, :n], state, scratch, bits):
            return start
        same = x.size - n - nan - inf
        state[NAN] += nan
        state[INF] += inf
        state[UNEQUAL] += nan + inf
        state[WITHIN_1] += same
        state[WITHIN_5] += same
    size: int = a.size
    return size
