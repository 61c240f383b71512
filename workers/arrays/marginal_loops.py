"""The loops that sum a tensor along its axes; `marginal_kernels.py` calls them.

A tensor is seen as a table: its last axes together are the columns, those before them the rows. One loop
sums each column, another one each row, whose sums are added up along the leading axes. Both run over some
rows that stay in the L1 cache. The columns are added up along the last axes when the tensor is complete.

Elements are passed as themselves and as their bits, signed integers. Sums are (place,) of float64: first
those that are wanted, axis by axis, then those of the columns, unless they are among them; with them come
sums of squares, (place,), and the bits of the largest magnitudes, (place,).

They allocate nothing and raise nothing, as those of `kernel_loops.py`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from workers.arrays.lazy_compile import compiled

#: The most axes before the columns, and among them; neighbours of which no marginal is wanted count as one.
MOST_AXES: Final = 16
#: Elements that are looked at twice at a time, unless four rows are more: they stay in the L1 cache.
BLOCK: Final = 4096
#: The places of a plan, int64: how many columns there are; the place of the first sum of a column, or -1 if
#: they are not summed; whether rows are; how many axes are before the columns; how many axes the columns have
#: that are to be told apart, 0 if they are one; how many sums there are, and how many of them are wanted.
#: Then for each of these axes, outer to inner, its length, the place of its first sum, or -1 if none is
#: wanted, and memory for the loops.
WIDTH, COLUMNS, HAS_ROWS, LEADING, INNER, TOTAL, WANTED, FIRST_AXIS = range(8)
LENGTH, BEGIN, AT = range(3)
PLAN_FIELDS: Final = FIRST_AXIS + 3 * MOST_AXES

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
    total, square = _moments_of_row(values)
    _add_sums(total, square, _largest_of_row(bits), plan[: FIRST_AXIS + 3 * plan[LEADING]], into)


@compiled(set())
def _add_sums(total: float, square: float, top: Any, plan: Any, into: Any) -> None:
    """Add sums to those of the axes at the end of a plan, at the places that it is at."""
    sums, squares, largest = into
    for own in range(FIRST_AXIS, plan.size, 3):
        if plan[own + BEGIN] >= 0:
            place = plan[own + BEGIN] + plan[own + AT]
            sums[place] += total
            squares[place] += square
            largest[place] = max(largest[place], top)


@compiled(set())
def _go_to(row: int, axes: Any) -> None:
    """Set the places along axes, which are a part of a plan, to those of a row."""
    rest = row
    for own in range(axes.size - 3, -1, -3):
        axes[own + AT] = rest % axes[own + LENGTH]
        rest //= axes[own + LENGTH]


@compiled(set())
def _advance(axes: Any) -> None:
    """Go on to the next row."""
    for own in range(axes.size - 3, -1, -3):
        axes[own + AT] += 1
        if axes[own + AT] < axes[own + LENGTH]:
            return
        axes[own + AT] = 0


@compiled(set())
def _add_rows(x: Any, row: int, plan: Any, into: Any) -> None:
    """Add whole rows, the first of which is `row`, to the sums of the leading axes."""
    values, bits = x
    width, axes = plan[WIDTH], plan[FIRST_AXIS : FIRST_AXIS + 3 * plan[LEADING]]
    _go_to(row, axes)
    for begin in range(0, values.size, width):
        _add_row((values[begin : begin + width], bits[begin : begin + width]), plan, into)
        _advance(axes)


@compiled(set())
def _add_part(x: Any, at: int, plan: Any, into: Any) -> None:
    """Add a part of a row; `at` is the element of the tensor that is its first."""
    sums, squares, largest = into
    width = plan[WIDTH]
    if plan[COLUMNS] >= 0:
        begin = plan[COLUMNS] + at % width
        end = begin + x[0].size
        _add_columns(x, 1, sums[begin:end], squares[begin:end], largest[begin:end])
    if plan[HAS_ROWS]:
        _go_to(at // width, plan[FIRST_AXIS : FIRST_AXIS + 3 * plan[LEADING]])
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
    first, last = plan[COLUMNS], plan[COLUMNS] + width
    for begin in range(head, n - tail, step):
        end = min(begin + step, n - tail)
        block = (values[begin:end], bits[begin:end])
        if first >= 0:
            rows = (end - begin) // width
            _add_columns(block, rows, sums[first:last], squares[first:last], largest[first:last])
        if plan[HAS_ROWS]:
            _add_rows(block, (start + begin) // width, plan, into)
    if tail:
        _add_part((values[n - tail :], bits[n - tail :]), start + n - tail, plan, into)


@compiled(set())
def write_table(plan: Any, into: Any, magnitudes: Any, out: Any) -> None:
    """Write what is wanted of the sums of a complete tensor; call it once.

    Args:
        plan: that of all pieces.
        into: sums, sums of squares, and bits of largest magnitudes.
        magnitudes: the memory of the latter as floats.
        out: (3, WANTED) of float32: sums, norms, largest magnitudes.
    """
    sums, squares, largest = into
    if plan[INNER]:
        inner = plan[FIRST_AXIS + 3 * plan[LEADING] : FIRST_AXIS + 3 * (plan[LEADING] + plan[INNER])]
        _go_to(0, inner)
        for column in range(plan[COLUMNS], plan[COLUMNS] + plan[WIDTH]):
            for own in range(0, inner.size, 3):
                if inner[own + BEGIN] >= 0:
                    place = inner[own + BEGIN] + inner[own + AT]
                    sums[place] += sums[column]
                    squares[place] += squares[column]
                    largest[place] = max(largest[place], largest[column])
            _advance(inner)
    for place in range(plan[WANTED]):
        out[0, place] = _narrowed(sums[place])
        out[1, place] = _narrowed(math.sqrt(squares[place]))
        out[2, place] = _narrowed(np.float64(magnitudes[place]))


@compiled(set())
def _narrowed(value: float) -> Any:
    """Return a number as float32: the largest one if it is larger, and the smallest if it would be zero."""
    largest = 3.4028234663852886e38
    narrow = np.float32(min(max(value, -largest), largest))
    if narrow == 0 and value != 0:
        return np.float32(math.copysign(1.401298464324817e-45, value))
    return narrow
