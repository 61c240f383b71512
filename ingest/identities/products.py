"""Products of matrices: recomputed, or checked by random projection if they are large."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from ingest.identities.definition import Array, CallOperands, Expectation, wide
from ingest.identities.limits import sum_error, unit_roundoff

#: Products of more multiplications than this are checked by projection, and only what differs is recomputed.
DIRECT = 1 << 26
#: With arithmetic of this roundoff, float64, all of a product is recomputed.
_WHOLE = 2.0**-53
#: Projections that differ by this many times what half of them do are looked at.
_UNUSUAL = 6.0


def matrix_product(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """X @ w, with a bias or without, and whatever is transposed or flattened."""
    tensors = call.tensors
    if len(tensors) < 2 or not out.ndim:
        return
    bias = call.named.get("bias", tensors[2] if len(tensors) > 2 else None)
    if bias is not None and (bias.size != out.shape[-1] or len(tensors) > 3):
        return
    flags = [bool(each) for each in call.inputs if each.dtype.kind == "b" and not each.ndim]
    left, right = (as_multiplied(each, out) for each in tensors[:2])
    for a, b in _arrangements(left, right, out.shape, flags)[:2]:
        yield from _of_factors(a, b, bias, out, unit)


def as_multiplied(array: Array, like: Array) -> Array:
    """Return a factor in float64, first rounded to the type of another tensor if that is narrower.

    So autocast rounds what it multiplies to the type of what it returns.
    """
    is_wider = array.dtype.itemsize > like.dtype.itemsize and unit_roundoff(like.dtype) > 0
    return wide(array.astype(like.dtype) if is_wider else array)


def _arrangements(
    a: Array, b: Array, shape: tuple[int, ...], flags: Sequence[bool]
) -> list[tuple[Array, Array]]:
    """Return the factors as (batch, row, k) and (batch, k, column), those that multiply to the shape."""
    found = []
    columns = shape[-1]
    for batch in {1, math.prod(shape[:-2])}:
        rows = math.prod(shape) // max(batch * columns, 1)
        lengths = _inner_lengths(a, b, batch * rows, columns)
        if lengths is None or lengths[1] not in (1, batch):
            continue
        k, own = lengths
        lefts = (a.reshape(batch, rows, k), a.reshape(batch, k, rows).swapaxes(1, 2))
        rights = (b.reshape(own, k, columns), b.reshape(own, columns, k).swapaxes(1, 2))
        for left, right in product((0, 1), (0, 1)):
            if len(flags) != 2 or flags == [bool(left), bool(right)]:
                found.append((lefts[left], rights[right]))
    return found


def _inner_lengths(a: Array, b: Array, rows: int, columns: int) -> tuple[int, int] | None:
    """Return the length of the axis that is summed over, and how many matrices `b` is; None if none fits."""
    if not rows or not columns or a.size % rows or b.size % columns:
        return None
    k = a.size // rows
    own = b.size // max(k * columns, 1)
    return (k, own) if k and b.size == own * k * columns else None


def _of_factors(a: Array, b: Array, bias: Array | None, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield a product of factors; of a large one, only the rows and columns in which a projection differs."""
    batch, rows, k = a.shape
    columns = b.shape[2]
    added = np.zeros(1) if bias is None else as_multiplied(bias, out).reshape(-1)
    share = sum_error(k + 1, unit) + unit
    if batch * rows * columns * k <= DIRECT or unit <= _WHOLE:
        value = a @ b
        error = share * (np.abs(a) @ np.abs(b) + np.abs(added))  # sums may begin with the bias
        if bias is not None:
            error = error + unit_roundoff(out.dtype) * np.abs(value)
        yield Expectation((value + added).reshape(out.shape), error.reshape(out.shape))
        return
    actual = wide(out).reshape(batch, rows, columns)
    value, error = actual.copy(), np.zeros((batch, rows, columns))
    b = np.broadcast_to(b, (batch, k, columns))
    for number in range(batch):
        bad = _unlike(a[number], b[number], actual[number] - added, share + unit_roundoff(out.dtype))
        if bad is None or sum(map(len, bad)) * 4 > rows + columns:
            return
        for chosen in ((bad[0], slice(None)), (slice(None), bad[1])):
            left, right = a[number][chosen[0]], b[number][:, chosen[1]]
            value[number][chosen] = left @ right + np.broadcast_to(added, columns)[chosen[1]]
            error[number][chosen] = share * (np.abs(left) @ np.abs(right) + np.max(np.abs(added)))
    yield Expectation(value.reshape(out.shape), error.reshape(out.shape))


def _unlike(a: Array, b: Array, c: Array, share: float) -> tuple[Array, Array] | None:
    """Return the rows and the columns of c in which two random projections differ from those of a @ b.

    R. Freivalds, "Probabilistic machines can use less running time", IFIP 1977. What they name is recomputed:
    those that differ by more than the rounding that half of them show. None if half of them differ by more
    than rounding, both of the rows and of the columns: a wrong row changes all columns, which are looked at
    without it.

    Args:
        a: (row, k).
        b: (k, column).
        c: the product that was computed.
        share: how far an element may be from the exact one, as a share of the norms of its row and column.
    """
    rows = _projected(a, b, c, share)
    columns = _projected(b.T, a.T, c.T, share)
    if rows is not None and (columns is None or len(rows)):
        kept = np.setdiff1d(np.arange(len(a)), rows)
        columns = _projected(b.T, a[kept].T, c[kept].T, share)
    elif rows is None and columns is not None:
        kept = np.setdiff1d(np.arange(b.shape[1]), columns)
        rows = _projected(a, b[:, kept], c[:, kept], share)
    return None if rows is None or columns is None else (rows, columns)


def _projected(left: Array, right: Array, result: Array, share: float) -> Array | None:
    """Return the rows whose projections differ by far more than usual; None if those of half of them do.

    None, too, if rounding may be as large as the projections themselves: then they tell nothing.
    """
    if not right.size:
        return None
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (right.shape[1], 2))
    exact = left @ (right @ signs)
    residue = np.abs(exact - result @ signs).max(1)
    usual = np.median(residue)
    limit = 4 * share * np.median(np.linalg.norm(left, axis=1)) * np.linalg.norm(right)
    if usual > limit or limit > np.median(np.abs(exact)):
        return None
    return np.flatnonzero(~(residue <= _UNUSUAL * usual))
