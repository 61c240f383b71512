"""The loops that sum a tensor along its axes; `workers.arrays.marginals` calls them.

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

from workers.arrays.compiled.kernel_loops import compiled

#: The most axes before the columns, and among them; neighbours of which no marginal is wanted count as one.
MOST_AXES: Final = 16
#: Elements that are looked at twice at a time, unless four rows are more: they stay in the L1 cache.
BLOCK: Final = 4096
#: The places of a plan, int64: how many columns there are; the place of the first sum of a column, or -1 if
#: they are not summed; whether rows are; how many axes are before the columns; how many axes the columns have
#: that are to be told apart, 0 if they are one; how many sums there are, and how many of them are wanted;
#: whether any element but zero was met, which `write_table` sets.
#: Then for each of these axes, outer to inner, its length, the place of its first sum, or -1 if none is
#: wanted, and memory for the loops.
WIDTH, COLUMNS, HAS_ROWS, LEADING, INNER, TOTAL, WANTED, HAS_NONZERO, FIRST_AXIS = range(9)
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
def _moments_of_four(values: Any, sums: Any, squares: Any) -> Any:
    """Add four rows to the sums of columns; return the sum of each row, and that of its squares.

    Both kinds of sums in one loop take little longer than one, because converting elements is most of it.
    """
    width = sums.size
    b, c, d = width, 2 * width, 3 * width
    first, second, third, fourth = values[:b], values[b:c], values[c:d], values[d : d + width]
    s, t, u, v = 0.0, 0.0, 0.0, 0.0
    p, q, r, o = 0.0, 0.0, 0.0, 0.0
    for i in range(width):
        w, x = np.float64(first[i]), np.float64(second[i])
        y, z = np.float64(third[i]), np.float64(fourth[i])
        sums[i] += (w + x) + (y + z)
        squares[i] += (w * w + x * x) + (y * y + z * z)
        s += w
        t += x
        u += y
        v += z
        p += w * w
        q += x * x
        r += y * y
        o += z * z
    return s, t, u, v, p, q, r, o


@compiled(_REORDER)
def _largest_of_four(bits: Any, largest: Any) -> Any:
    """Add four rows to the largest magnitudes of columns; return that of each row. All are bits."""
    width = largest.size
    b, c, d = width, 2 * width, 3 * width
    first, second, third, fourth = bits[:b], bits[b:c], bits[c:d], bits[d : d + width]
    kind = bits.dtype.type  # otherwise, numba would calculate in 64 bits
    magnitude = kind(np.iinfo(bits.dtype).max)
    s, t, u, v = kind(0), kind(0), kind(0), kind(0)
    for i in range(width):
        w, x = kind(first[i] & magnitude), kind(second[i] & magnitude)
        y, z = kind(third[i] & magnitude), kind(fourth[i] & magnitude)
        largest[i] = max(largest[i], max(max(w, x), max(y, z)))  # noqa: PLW3301  (two at a time)
        s, t, u, v = max(s, w), max(t, x), max(u, y), max(v, z)
    return s, t, u, v


@compiled(_REORDER)
def _moments_of_row(values: Any) -> Any:
    total, square = 0.0, 0.0
    for i in range(values.size):
        v = np.float64(values[i])
        total += v
        square += v * v
    return total, square


@compiled(_REORDER)
def _largest_of_row(bits: Any) -> Any:
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
    for own in range(axes.size - 3, -1, -3):
        axes[own + AT] += 1
        if axes[own + AT] < axes[own + LENGTH]:
            return
        axes[own + AT] = 0


@compiled(set())
def _add_rows(x: Any, row: int, plan: Any, into: Any) -> None:
    values, bits = x
    width, axes = plan[WIDTH], plan[FIRST_AXIS : FIRST_AXIS + 3 * plan[LEADING]]
    _go_to(row, axes)
    for begin in range(0, values.size, width):
        _add_row((values[begin : begin + width], bits[begin : begin + width]), plan, into)
        _advance(axes)


@compiled(set())
def _add_table(x: Any, row: int, plan: Any, into: Any) -> None:
    values, bits = x
    sums, squares, largest = into
    width, first = plan[WIDTH], plan[COLUMNS]
    last, whole = first + width, values.size - values.size % (4 * width)
    own = plan[: FIRST_AXIS + 3 * plan[LEADING]]
    axes = own[FIRST_AXIS:]
    _go_to(row, axes)
    for begin in range(0, whole, 4 * width):
        end = begin + 4 * width
        moments = _moments_of_four(values[begin:end], sums[first:last], squares[first:last])
        tops = _largest_of_four(bits[begin:end], largest[first:last])
        for i in range(4):
            _add_sums(moments[i], moments[4 + i], tops[i], own, into)
            _advance(axes)
    if whole < values.size:
        rest, rows = (values[whole:], bits[whole:]), (values.size - whole) // width
        _add_columns(rest, rows, sums[first:last], squares[first:last], largest[first:last])
        _add_rows(rest, row + whole // width, plan, into)


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
def begin(plan: Any, own: Any, into: Any) -> None:
    """Begin with no elements.

    Args:
        plan: (PLAN_FIELDS,), how the tensor is cut; it is not changed.
        own: (PLAN_FIELDS,), the copy of it that the other functions are given.
        into: sums, sums of squares, and bits of largest magnitudes.
    """
    sums, squares, largest = into
    for place in range(PLAN_FIELDS):
        own[place] = plan[place]
    sums[:] = 0
    squares[:] = 0
    largest[:] = 0


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
        if first >= 0 and plan[HAS_ROWS]:
            _add_table(block, (start + begin) // width, plan, into)
        elif first >= 0:
            rows = (end - begin) // width
            _add_columns(block, rows, sums[first:last], squares[first:last], largest[first:last])
        elif plan[HAS_ROWS]:
            _add_rows(block, (start + begin) // width, plan, into)
    if tail:
        _add_part((values[n - tail :], bits[n - tail :]), start + n - tail, plan, into)


@compiled(_REORDER)
def _sum_of_columns(columns: Any, last: Any) -> Any:
    """Return the sum of some columns, and add each to those of the last axis, if wanted."""
    total = 0.0
    for i in range(columns.size):
        total += columns[i]
    for i in range(last.size):
        last[i] += columns[i]
    return total


@compiled(_REORDER)
def _largest_of_columns(columns: Any, last: Any) -> Any:
    """Return the largest of some magnitudes; the same of the last axis, each of its own."""
    top = columns.dtype.type(0)
    for i in range(columns.size):
        top = max(top, columns[i])
    for i in range(last.size):
        last[i] = max(last[i], columns[i])
    return top


@compiled(set())
def _add_up_columns(plan: Any, into: Any) -> None:
    sums, squares, largest = into
    end = FIRST_AXIS + 3 * (plan[LEADING] + plan[INNER])
    inner, last = plan[FIRST_AXIS + 3 * plan[LEADING] : end - 3], plan[end - 3 : end]
    length, begin = last[LENGTH], max(last[BEGIN], 0)
    kept = begin + length if last[BEGIN] >= 0 else begin
    _go_to(0, inner)
    for column in range(plan[COLUMNS], plan[COLUMNS] + plan[WIDTH], length):
        stop = column + length
        total = _sum_of_columns(sums[column:stop], sums[begin:kept])
        square = _sum_of_columns(squares[column:stop], squares[begin:kept])
        top = _largest_of_columns(largest[column:stop], largest[begin:kept])
        for own in range(0, inner.size, 3):
            if inner[own + BEGIN] >= 0:
                place = inner[own + BEGIN] + inner[own + AT]
                sums[place] += total
                squares[place] += square
                largest[place] = max(largest[place], top)
        _advance(inner)


@compiled(set())
def write_table(plan: Any, into: Any, magnitudes: Any, out: Any) -> None:
    """Write what is wanted of the sums of a complete tensor; call it once.

    Args:
        plan: that of all pieces.
        into: sums, sums of squares, and bits of largest magnitudes.
        magnitudes: the memory of the latter as floats.
        out: (3, WANTED) of float32: sums, norms, largest magnitudes.
    """
    sums, squares, _ = into
    if plan[INNER]:
        _add_up_columns(plan, into)
    wanted = plan[WANTED]
    for place in range(wanted):
        squares[place] = math.sqrt(squares[place])
    _narrow(sums[:wanted], out[0])
    _narrow(squares[:wanted], out[1])
    _narrow(magnitudes[:wanted], out[2])
    plan[HAS_NONZERO] = _has_nonzero(out[2])


@compiled(_REORDER)
def _has_nonzero(magnitudes: Any) -> int:
    top = np.float32(0)
    for i in range(magnitudes.size):
        top = max(top, magnitudes[i])
    return 1 if top > 0 else 0


@compiled({"nnan"})
def _narrow(values: Any, out: Any) -> None:
    """Write numbers as float32: the largest one for larger ones, and the smallest for what would be zero."""
    largest, smallest = np.float64(3.4028234663852886e38), np.float64(1.401298464324817e-45)
    for i in range(out.size):
        value = np.float64(values[i])
        magnitude = abs(value)
        bounded = min(largest, magnitude)
        raised = max(smallest, bounded)
        out[i] = np.float32(math.copysign(raised if magnitude > 0 else 0.0, value))
