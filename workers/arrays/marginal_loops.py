"""The loops that sum a tensor along its axes; `marginal_kernels.py` calls them.

A tensor is seen as a table: its last axes together are the columns, those before them the rows. One loop
sums each column, another one each row, whose sums are added up along the leading axes. Both run over some
rows that stay in the L1 cache. The columns are added up along the last axes when the tensor is complete.

Elements are passed as themselves and as their bits, signed integers. Sums are (place,) of float64: first of
the columns, if these are summed, then of the leading axes; with them come sums of squares, (place,), and the
bits of the largest magnitudes, (place,).

They allocate nothing and raise nothing, as those of `kernel_loops.py`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from workers.arrays.lazy_compile import compiled

#: The most leading axes; neighbours of which no marginal is wanted count as one.
MOST_LEADING: Final = 8
#: Elements that are looked at twice at a time, unless four rows are more: they stay in the L1 cache.
BLOCK: Final = 4096
#: The places of a plan, int64: how many columns there are; whether they are summed; whether rows are; how
#: many leading axes there are; how many sums. Then for each leading axis, outer to inner, its length, the
#: place of its first sum, or -1 if none is wanted, and memory for the loops.
WIDTH, HAS_COLUMNS, HAS_ROWS, LEADING, TOTAL, FIRST_AXIS = range(6)
LENGTH, BEGIN, AT = range(3)
PLAN_FIELDS: Final = FIRST_AXIS + 3 * MOST_LEADING

#: Sums may be reordered, which is what vector instructions do. Elements are finite.
_REORDER: Final = {"reassoc", "contract", "nsz"}


@compiled(_REORDER)
def _add_columns(x: Any, rows: int, sums: Any, squares: Any, largest: Any) -> None:
    """Add rows to the sums of columns; `x` holds the rows one after the other."""
    values, bits = x
    width = sums.size
    magnitude = bits.dtype.type(np.iinfo(bits.dtype).max)
    whole = rows - rows % 4
    for row in range(0, whole, 4):
        a, b, c, d = row * width, (row + 1) * width, (row + 2) * width, (row + 3) * width
        first, second, third, fourth = values[a:b], values[b:c], values[c:d], values[d : d + width]
        for i in range(width):
            v, w = np.float64(first[i]), np.float64(second[i])
            y, z = np.float64(third[i]), np.float64(fourth[i])
            sums[i] += (v + w) + (y + z)
            squares[i] += (v * v + w * w) + (y * y + z * z)
        p, q, r, s = bits[a:b], bits[b:c], bits[c:d], bits[d : d + width]
        for i in range(width):
            upper = max(p[i] & magnitude, q[i] & magnitude)
            lower = max(r[i] & magnitude, s[i] & magnitude)
            both = max(upper, lower)
            largest[i] = max(largest[i], both)
    for row in range(whole, rows):
        a = row * width
        for i in range(width):
            v = np.float64(values[a + i])
            sums[i] += v
            squares[i] += v * v
            largest[i] = max(largest[i], bits[a + i] & magnitude)


@compiled(_REORDER)
def _moments_of_row(values: Any) -> Any:
    """Return the sum of a row, and that of its squares."""
    total, square = 0.0, 0.0
    for i in range(values.size):
        v = np.float64(values[i])
        total += v
        square += v * v
    return total, square


@compiled(_REORDER)
def _largest_of_row(bits: Any) -> Any:
    """Return the bits of the largest magnitude of a row."""
    kind = bits.dtype.type  # otherwise, numba would calculate in 64 bits
    magnitude, top = kind(np.iinfo(bits.dtype).max), kind(0)
    for i in range(bits.size):
        top = max(top, kind(bits[i] & magnitude))
    return top


@compiled(set())
def _add_row(x: Any, plan: Any, into: Any) -> None:
    """Add the elements of one row to the sums of the leading axes, at the places that the plan is at."""
    values, bits = x
    sums, squares, largest = into
    total, square = _moments_of_row(values)
    top = _largest_of_row(bits)
    for axis in range(plan[LEADING]):
        own = FIRST_AXIS + 3 * axis
        if plan[own + BEGIN] >= 0:
            place = plan[own + BEGIN] + plan[own + AT]
            sums[place] += total
            squares[place] += square
            largest[place] = max(largest[place], top)


@compiled(set())
def _go_to(row: int, plan: Any) -> None:
    """Set the places along the leading axes to those of a row."""
    rest = row
    for back in range(plan[LEADING]):
        own = FIRST_AXIS + 3 * (plan[LEADING] - 1 - back)
        plan[own + AT] = rest % plan[own + LENGTH]
        rest //= plan[own + LENGTH]


@compiled(set())
def _advance(plan: Any) -> None:
    """Go on to the next row."""
    for back in range(plan[LEADING]):
        own = FIRST_AXIS + 3 * (plan[LEADING] - 1 - back)
        plan[own + AT] += 1
        if plan[own + AT] < plan[own + LENGTH]:
            return
        plan[own + AT] = 0


@compiled(set())
def _add_rows(x: Any, row: int, plan: Any, into: Any) -> None:
    """Add whole rows, the first of which is `row`, to the sums of the leading axes."""
    values, bits = x
    width = plan[WIDTH]
    _go_to(row, plan)
    for begin in range(0, values.size, width):
        _add_row((values[begin : begin + width], bits[begin : begin + width]), plan, into)
        _advance(plan)


@compiled(set())
def _add_part(x: Any, at: int, plan: Any, into: Any) -> None:
    """Add a part of a row; `at` is the element of the tensor that is its first."""
    sums, squares, largest = into
    width = plan[WIDTH]
    if plan[HAS_COLUMNS]:
        begin, end = at % width, at % width + x[0].size
        _add_columns(x, 1, sums[begin:end], squares[begin:end], largest[begin:end])
    if plan[HAS_ROWS]:
        _go_to(at // width, plan)
        _add_row(x, plan, into)


@compiled(set())
def add_piece(x: Any, start: int, plan: Any, into: Any) -> None:
    """Add a piece of a tensor to its sums.

    Args:
        x: the elements, finite, and their bits.
        start: which element of the tensor is the first.
        plan: (PLAN_FIELDS,), see `WIDTH` and those after it.
        into: sums, sums of squares, and bits of largest magnitudes.
    """
    values, bits = x
    sums, squares, largest = into
    width, n = plan[WIDTH], values.size
    head = min((width - start % width) % width, n)
    if head:
        _add_part((values[:head], bits[:head]), start, plan, into)
    tail = (n - head) % width
    step = width * max(BLOCK // width // 4 * 4, 4)
    for begin in range(head, n - tail, step):
        end = min(begin + step, n - tail)
        block = (values[begin:end], bits[begin:end])
        if plan[HAS_COLUMNS]:
            _add_columns(block, (end - begin) // width, sums[:width], squares[:width], largest[:width])
        if plan[HAS_ROWS]:
            _add_rows(block, (start + begin) // width, plan, into)
    if tail:
        _add_part((values[n - tail :], bits[n - tail :]), start + n - tail, plan, into)
