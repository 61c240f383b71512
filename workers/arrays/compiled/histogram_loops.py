"""The loops that count the elements of a tensor by sign and power of two; `histogram_kernels.py` calls them.

The bits of a float above its mantissa are its sign and its exponent, so a shift gives the bin. One is
subtracted before: a power of two itself then belongs to the bin below it, and zero to a bin of its own. A bin
is so (2**k, 2**(k+1)], and rounding to nearest even sends exactly whole bins to zero: half of the smallest
number of a type, which is a power of two, is rounded to zero, and whatever is above it is not.

They allocate nothing and raise nothing, as those of `kernel_loops.py`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from workers.arrays.compiled.kernel_loops import compiled

#: Bins of one sign. Bin b holds magnitudes in (2**(b-127), 2**(b-126)]; bin 0 begins at 0, and `LAST` has no
#: end for types with larger numbers than float32. Bin 255 receives zeros and NaN, which are not kept.
BINS: Final = 256
#: The last bin with numbers. It receives infinities, too; `write_sparse` takes them out.
LAST: Final = 254
#: The exponent at which bin 0 ends is one more than this.
LOWEST_EXPONENT: Final = -127
#: Several tables, so that equal neighbours do not wait for one another. The same place of two tables is not a
#: multiple of 4096 bytes away: processors take such addresses for the same when they order loads and stores.
#: They are of 32 bits, so that they and a block of elements fit into the L1 cache.
TABLES: Final = 8
WIDTH: Final = 2 * BINS + 16


@compiled(set())
def count_float32(bits: Any, tables: Any) -> None:
    """Add elements to tables of shape (TABLES, WIDTH), uint32, from their bits as int32."""
    # Unsigned indexes: otherwise each is compared with 0, because numpy counts negative ones from the end.
    whole = bits.size - bits.size % 8
    for i in range(0, whole, 8):
        for table in range(8):
            tables[table, np.uint64(((bits[i + table] - 1) >> 23) & 511)] += np.uint32(1)
    for i in range(whole, bits.size):
        tables[0, np.uint64(((bits[i] - 1) >> 23) & 511)] += np.uint32(1)


@compiled(set())
def count_float64(bits: Any, bin_of: Any, tables: Any) -> None:
    """Add elements to tables, from their bits as int64; `bin_of` has the bin of each upper 12 bits."""
    whole = bits.size - bits.size % 2
    for i in range(0, whole, 2):
        tables[0, np.uint64(bin_of[np.uint64(((bits[i] - 1) >> 52) & 4095)])] += np.uint32(1)
        tables[1, np.uint64(bin_of[np.uint64(((bits[i + 1] - 1) >> 52) & 4095)])] += np.uint32(1)
    for i in range(whole, bits.size):
        tables[0, np.uint64(bin_of[np.uint64(((bits[i] - 1) >> 52) & 4095)])] += np.uint32(1)


@compiled(set())
def add_tables(tables: Any, totals: Any) -> None:
    """Add tables to `totals`, (2 * BINS,) of int64, and set them to 0."""
    # All tables together hold fewer than 2**32 elements, so their sum needs no more bits than each.
    for place in range(2 * BINS):
        counted = np.uint32(0)
        for table in range(TABLES):
            counted = np.uint32(counted + tables[table, place])
            tables[table, place] = 0
        totals[place] += np.int64(counted)


@compiled(set())
def write_sparse(totals: Any, pos_inf: int, neg_inf: int, out: Any) -> None:
    """Write the bins that hold elements to `out`, (LAST + 2, 3), and their number to its last row.

    `totals` are 0 afterwards.
    """
    n = 0
    for place in range(LAST + 1):
        positive, negative = totals[place], totals[place + BINS]
        if place == LAST:
            positive -= pos_inf
            negative -= neg_inf
        if positive or negative:
            out[n, 0] = place + LOWEST_EXPONENT
            out[n, 1] = positive
            out[n, 2] = negative
            n += 1
    totals[:] = 0
    out[LAST + 1, 0] = n
