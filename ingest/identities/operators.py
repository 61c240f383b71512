"""What operators compute: from their inputs, every output that the definition allows, with its rounding.

A definition yields expectations. Attributes that a dump lacks (transposes, axes, eps, approximations) are
found from the data: each possible one is an expectation, and the one that holds is told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any

import numpy as np

from ingest.identities.definition import Array, CallOperands, Definition, Expectation, by_name, either, wide
from ingest.identities.elementwise import ELEMENTWISE, broadcasts, fitting, of_two
from ingest.identities.layers import (
    DIRECT,
    convolution,
    matrix_product,
    norm_of_batch,
    norm_of_groups,
    norm_of_rows,
    transposed_convolution,
)
from ingest.identities.limits import FUNCTION, sum_error, unit_roundoff, working_roundoff

#: Prefixes and parts that dump systems add to the name of an operator.
_API = re.compile(r"(?i)^(?:tensor|torch|functional|primitive|mint|npu|aten|vf|aclnn)[.:]+")
_PARTS = frozenset(["default", "forward", "out", "tensor", "scalar", "self", "int", "ext"])
_VERSION = re.compile(r"(?<=[a-z])v\d+$")
#: Elements that tell how many kinds of values a tensor has.
_SEEN = 4096
#: By which chance a part of a tensor may be alike another one but for an element.
_CHANCE = 1e-9


@lru_cache(maxsize=4096)
def plain_name(op_type: str) -> str:
    """Return the name that tables of operators have: `log` for `Log`, `aten.log.default`, `Tensor.log_`."""
    parts = [
        part
        for part in _API.sub("", op_type).lower().split(".")
        if part not in _PARTS and not part.isdecimal()
    ]
    name = re.sub(r"[^a-z0-9]+", "", parts[-1] if parts else "")
    return _VERSION.sub("", name.removeprefix("aclnn"))


# Several inputs, and rows


def _pairwise_loss(of: Callable[[Array], Array]) -> Definition:
    """Return the definition of a loss of the differences of two inputs: of each, their mean, or their sum."""

    def definition(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
        given = call.tensors[:2]
        if len(given) < 2 or given[0].shape != given[1].shape or not given[0].size:
            return
        a, b = map(wide, given)
        losses, error = of(a - b), 4 * unit * (of(np.abs(a) + np.abs(b)))
        if out.shape == losses.shape:
            yield Expectation(losses, error)
            return
        # Narrow types are added up in float32.
        error = error.sum() + sum_error(losses.size, min(unit, 2.0**-24)) * losses.sum()
        for told, divisor in ("mean", losses.size), ("sum", 1):
            yield Expectation(losses.sum().reshape(out.shape) / divisor, error / divisor, told)

    return definition


def _normalised(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield rows of length 1, along each axis."""
    x = fitting(call.numbers[0], out) if call.numbers else None
    if x is None:
        return
    for axis, length in enumerate(out.shape):
        value = x / np.maximum(np.linalg.norm(x, axis=axis, keepdims=True), 1e-12)
        # The norm is rounded to the type of the output.
        error = sum_error(length, unit) + 4 * unit + unit_roundoff(out.dtype)
        yield Expectation(value, error * np.abs(value), f"axis = {axis}")


def _times_vector(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    if len(call.tensors) != 2:
        return
    a, vector = map(wide, call.tensors)
    if vector.ndim == 1 and a.shape[-1] == vector.size and a.size == out.size * vector.size:
        error = sum_error(vector.size, unit) * (np.abs(a) @ np.abs(vector))
        yield Expectation((a @ vector).reshape(out.shape), np.reshape(error, out.shape))


def _sum_of_all(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    addends = [fitting(each, out) for each in call.numbers]
    known = [each for each in addends if each is not None]
    if len(known) == len(addends) and known:
        yield Expectation(
            np.sum(known, axis=0), sum_error(len(known) + 1, unit) * np.sum(np.abs(known), axis=0)
        )


def _biased(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    numbers = call.tensors
    if len(numbers) < 2 or numbers[0].size != out.size:
        return
    x, bias = wide(numbers[0]).reshape(out.shape), wide(numbers[1])
    for axis in {out.ndim - 1, 1} & set(range(out.ndim)):
        if out.shape[axis] == bias.size:
            b = bias.reshape([-1 if each == axis else 1 for each in range(out.ndim)])
            yield Expectation(x + b, 2 * unit * (np.abs(x) + np.abs(b)))


def _masked(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    """Where the mask is set, one value; elsewhere the input."""
    masks = [each for each in call.inputs if each.dtype.kind == "b"]
    kept = [each for each in call.tensors if each.size == out.size and each.dtype == out.dtype]
    if not masks or not kept:
        return
    mask = np.broadcast_to(masks[0], out.shape)
    filled = out[mask]
    if filled.size:
        values, counts = np.unique(filled.view(f"u{out.dtype.itemsize}"), return_counts=True)
        fill = values[np.argmax(counts)].view(out.dtype)
        yield Expectation(np.where(mask, fill, kept[0].reshape(out.shape)), None, f"filled with {fill}")
    else:
        yield Expectation(kept[0].reshape(out.shape), None)


def _triangle(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    x = call.inputs[0] if call.inputs else out
    if x.shape != out.shape or out.ndim < 2:
        return
    for diagonal in range(-2, 3):
        for cut in (np.triu, np.tril):
            yield Expectation(cut(x, diagonal), None, f"diagonal = {diagonal}")


def _dropout(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Kept elements are scaled by one factor, the others are zero; in eval mode, all are kept."""
    x = fitting(call.tensors[0], out) if call.tensors else None
    if x is None:
        return
    shown = wide(out)
    is_kept = (shown != 0) & (x != 0)
    if np.count_nonzero(is_kept) < 4:
        return
    is_whole = np.count_nonzero(is_kept) == np.count_nonzero(x)
    ratio = float(np.median(shown[is_kept] / x[is_kept]))
    ratio = 1.0 if abs(ratio - 1) < 8 * unit_roundoff(out.dtype) else ratio
    if ratio == 1 and not is_whole:
        return
    value = np.where(is_kept, x * ratio, 0.0)
    yield Expectation(
        value, 4 * max(unit, unit_roundoff(out.dtype)) * np.abs(value), f"p = {1 - 1 / ratio:.4g}"
    )


# The same elements elsewhere, bit for bit


def _same(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    for x in call.inputs[:1]:
        if x.dtype != out.dtype:
            return
        if x.size == out.size:
            yield Expectation(x.reshape(out.shape), None)
        elif x.size and out.size and not out.size % x.size:
            for shape in {x.shape, (*x.shape[:-1], 1), x.shape[1:]}:
                if math.prod(shape) == x.size and broadcasts(shape, out.shape):
                    yield Expectation(np.broadcast_to(x.reshape(shape), out.shape), None)


def _permuted(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    """Yield it with its axes in every order; it may have been dumped with some of them joined."""
    x = call.inputs[0] if call.inputs else out
    if x.size != out.size or x.dtype != out.dtype or out.ndim > 5:
        return
    for order in permutations(range(out.ndim)):
        shape = tuple(out.shape[axis] for axis in order)
        if x.ndim != out.ndim or x.shape == shape:
            yield Expectation(
                x.reshape(shape).transpose(np.argsort(order)),
                None,
                f"axes = {[*map(int, np.argsort(order))]}",
            )


def _part(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    """Yield each range along one axis that has the shape; which of several outputs it is does not matter."""
    x = call.inputs[0] if call.inputs else out
    if x.dtype != out.dtype:
        return
    if x.size == out.size:
        yield Expectation(x.reshape(out.shape), None)
    is_telling = _is_telling(x, out.size)
    for place in ranges_of(x, out.shape):
        piece, chosen = x[place].reshape(out.shape), place[-1]
        begins = chosen.start % (chosen.stop - chosen.start) == 0 or np.array_equal(
            piece.flat[:1], out.flat[:1]
        )
        if (begins and is_telling) or np.array_equal(piece, out):
            yield Expectation(piece, None, f"{chosen.start}:{chosen.stop} of axis {len(place) - 1}")


def _chosen(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield the elements that an index or mask chooses, along each axis; without one, `_part`."""
    indices = [each for each in call.inputs[1:] if each.ndim and each.dtype.kind in "iub"]
    if not indices:
        yield from _part(call, out, unit)
    for axis in range(call.inputs[0].ndim) if len(indices) == 1 else ():
        try:
            place: Any = (*[slice(None)] * axis, indices[0])
            value = call.inputs[0][place]
        except IndexError:  # of another axis
            continue
        if value.shape == out.shape:
            yield Expectation(value, None, f"axis = {axis}")


def _is_telling(x: Array, size: int) -> bool:
    """Return whether a part cannot agree by chance in all elements but one, as few labels soon do."""
    kinds = len(np.unique(x.reshape(-1)[:_SEEN]))
    return size > 1 and kinds > 1 and x.size * size * kinds ** (1.0 - size) < _CHANCE


def ranges_of(x: Array, shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield the proper ranges along one axis that have a shape, with or without that axis."""
    for axis, length in enumerate(x.shape):
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        across = math.prod(before + after)
        part, rest = divmod(math.prod(shape), max(across, 1))
        is_proper = across > 0 and not rest and 0 < part < length
        if is_proper and shape in (before + after, (*before, part, *after)):
            for begin in range(length - part + 1):
                yield (*[slice(None)] * axis, slice(begin, begin + part))


def _joined(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    parts = [each for each in call.inputs if each.dtype == out.dtype and each.ndim]
    for axis in range(out.ndim) if len(parts) > 1 else ():
        try:
            for join in (np.concatenate, np.stack):
                value = join(parts, axis)
                if value.shape == out.shape:
                    yield Expectation(value, None, f"axis = {axis}")
        except ValueError:
            continue


def _repeated(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    for x in call.inputs[:1]:
        for axis in range(x.ndim if x.ndim == out.ndim and x.dtype == out.dtype else 0):
            times, rest = divmod(out.shape[axis], max(x.shape[axis], 1))
            if not rest and times > 1:
                yield Expectation(np.repeat(x, times, axis), None, f"{times} times")
                yield Expectation(np.concatenate([x] * times, axis), None, f"tiled {times} times")


def _cast(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    x = call.inputs[0] if call.inputs else out
    if x.size == out.size:
        yield Expectation(x.reshape(out.shape).astype(out.dtype), None)


def _embedding(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    ids = [each for each in call.tensors if each.dtype.kind in "iu"]
    tables = [each for each in call.tensors if each.ndim == 2 and each.dtype == out.dtype]
    if not ids or not tables or ids[0].size * tables[0].shape[1] != out.size:
        return
    if _are_rows_of(tables[0], ids[0]):
        yield Expectation(tables[0][ids[0].reshape(-1)].reshape(out.shape), None)


def _bags(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Rows of a table by bag: their mean, sum or maximum (`EmbeddingBag`)."""
    ids = [each for each in call.tensors if each.dtype.kind in "iu"]
    tables = [each for each in call.tensors if each.ndim == 2 and each.dtype == out.dtype]
    if len(ids) + len(tables) != len(call.tensors) or not ids or not _are_rows_of(tables[-1], ids[0]):
        return  # each row may have a weight
    begins = ids[-1].reshape(-1)[: len(out)]
    if ids[0].ndim == 2:
        begins = np.arange(0, ids[0].size, ids[0].shape[-1])
    yield from _of_bags(wide(tables[-1])[ids[0].reshape(-1)], begins, out.shape, unit)


def _of_bags(rows: Array, begins: Array, shape: tuple[int, ...], unit: float) -> Iterator[Expectation]:
    bags = np.searchsorted(begins, np.arange(len(rows)), side="right") - 1
    counts = np.maximum(np.bincount(bags, minlength=shape[0]), 1)[:, None]
    for value, error, _ in summed_rows(bags, rows, shape, unit):
        slack = error + unit * np.abs(value) if error is not None else 0.0
        yield Expectation(value / counts, slack / counts, "mode = mean")
        yield Expectation(value, error, "mode = sum")
    if (np.diff(begins, append=len(rows)) > 0).all():
        yield Expectation(np.maximum.reduceat(rows, begins, axis=0), 0.0, "mode = max")


def _are_rows_of(table: Array, ids: Array) -> bool:
    return bool(ids.size and ids.min() >= 0 and ids.max() < len(table))


def _scattered(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Rows that are added up by their number: the gradient of a table."""
    ids = [each.reshape(-1) for each in call.tensors if each.dtype.kind in "iu"]
    rows = [each for each in call.tensors if each.dtype.kind not in "iu"]
    if ids and rows and out.ndim == 2 and rows[0].size == ids[0].size * out.shape[1]:
        yield from summed_rows(ids[0], wide(rows[0]).reshape(len(ids[0]), -1), out.shape, unit)


def summed_rows(ids: Array, rows: Array, shape: tuple[int, ...], unit: float) -> Iterator[Expectation]:
    """Yield the sums of rows by their numbers."""
    if not ids.size or ids.min() < 0 or ids.max() >= shape[0]:
        return
    value, size = np.zeros(shape), np.zeros(shape)
    np.add.at(value, ids, rows)
    np.add.at(size, ids, np.abs(rows))
    yield Expectation(value, sum_error(int(np.bincount(ids).max()), unit) * size)


# Along axes


def _reduction(kind: str) -> Definition:
    """Return the definition of a reduction over whatever axes the shapes allow."""

    def definition(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
        if not call.tensors:
            return
        x = wide(call.tensors[0])
        for count in range(1, x.ndim + 1):
            for axes in combinations(range(x.ndim), count):
                length = math.prod(x.shape[axis] for axis in axes)
                kept = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
                if out.shape not in (kept, tuple(n for axis, n in enumerate(x.shape) if axis not in axes)):
                    continue
                told = f"axes = {list(axes)}"
                if kind in ("max", "min"):
                    chosen = x.max(axes) if kind == "max" else x.min(axes)
                    yield Expectation(chosen.reshape(out.shape).astype(out.dtype), None, told)
                    continue
                divisor = length if kind == "mean" else 1
                size = np.abs(x).sum(axes) / divisor
                yield Expectation(
                    (x.sum(axes) / divisor).reshape(out.shape),
                    ((sum_error(length, unit) + 2 * unit) * size).reshape(out.shape),
                    told,
                )

    return definition


def _column_sums(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield the gradient of a bias: sums over all but one axis."""
    if not call.tensors or out.ndim != 1 or not out.size or call.tensors[0].size % out.size:
        return
    x = wide(call.tensors[0])
    shapes = [x.reshape(-1, out.size)]
    shapes += [
        np.moveaxis(x, axis, -1).reshape(-1, out.size) for axis in range(x.ndim) if x.shape[axis] == out.size
    ]
    for rows in shapes:
        yield Expectation(rows.sum(0), sum_error(len(rows), unit) * np.abs(rows).sum(0))


def softmax(x: Array, axis: int = -1) -> Array:
    """Return the softmax along an axis; a row that is fully masked is NaN."""
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


def _softmax(*, is_log: bool) -> Definition:
    def definition(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
        x = fitting(call.tensors[0], out) if call.tensors else None
        if x is None:
            return
        for axis in reversed(range(out.ndim)):
            top = x.max(axis, keepdims=True)
            rounding = sum_error(out.shape[axis], unit) + FUNCTION * unit
            if is_log:
                value = x - top - np.log(np.exp(x - top).sum(axis, keepdims=True))
                error = rounding * (1 + np.abs(x) + np.abs(top))
            else:
                depth = np.abs(x - top)
                depth[~np.isfinite(depth)] = 0
                value = softmax(x, axis)
                error = value * (rounding + 2 * unit * depth)
            yield Expectation(value, error, f"axis = {axis}")

    return definition


def _attention(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Softmax of q k^T / sqrt(d), times v; causal, masked, or neither."""
    floats = [wide(each) for each in call.tensors if each.ndim >= 3]
    if (
        len(floats) < 3
        or floats[0].shape[:-1] != out.shape[:-1]
        or any(each.ndim != floats[0].ndim for each in floats[:3])
    ):
        return
    q, k, v = floats[:3]
    if k.shape[:-2] != q.shape[:-2]:
        repeats = q.shape[-3] // k.shape[-3]
        k, v = np.repeat(k, repeats, -3), np.repeat(v, repeats, -3)
    if q.size * k.shape[-2] > DIRECT:
        return
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    doubt = (
        (sum_error(q.shape[-1], unit) + 2 * unit)
        * (np.abs(q) @ np.abs(k).swapaxes(-1, -2))
        / math.sqrt(q.shape[-1])
    )
    masks = [np.zeros(()), np.where(np.tri(*scores.shape[-2:]) > 0, 0.0, -np.inf)]
    given = [np.where(each, 0.0, -np.inf) for each in call.inputs if each.dtype.kind == "b" and each.ndim]
    masks = given or [*floats[3:4]] or masks
    stored = unit_roundoff(out.dtype)
    for number, mask in enumerate(masks):
        weights = softmax(scores + mask)
        rounding = 2 * doubt.max(-1, keepdims=True) + sum_error(k.shape[-2], unit) + FUNCTION * unit + stored
        yield Expectation(weights @ v, rounding * (weights @ np.abs(v)), "causal" if number else "")


def _cross_entropy(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield the mean or sum over records of minus the logarithm of the probability of their class."""
    ids = [each.reshape(-1) for each in call.tensors if each.dtype.kind in "iu"]
    logits = [each for each in call.tensors if each.dtype.kind not in "iu" and each.ndim == 2]
    if not ids or not logits or len(ids[0]) != len(logits[0]):
        return
    x, chosen = wide(logits[0]), ids[0]
    is_counted = (chosen >= 0) & (chosen < x.shape[1])
    if not is_counted.any() or (~is_counted & (chosen != -100)).any():
        return
    x, chosen = x[is_counted], chosen[is_counted]
    top = x.max(1)
    sums = np.log(np.exp(x - top[:, None]).sum(1))
    losses = sums + top - x[np.arange(len(x)), chosen]
    errors = (sum_error(x.shape[1], unit) + FUNCTION * unit) * (
        1 + sums + np.abs(top) + np.abs(x[np.arange(len(x)), chosen])
    )
    if out.size == 1:
        error = errors.mean() + sum_error(len(x), unit) * np.abs(losses).mean()
        yield Expectation(losses.mean().reshape(out.shape), np.asarray(error), "mean")
        yield Expectation(losses.sum().reshape(out.shape), np.asarray(error * len(x)), "sum")
    elif out.size == len(ids[0]) == len(x):
        yield Expectation(losses.reshape(out.shape), errors.reshape(out.shape))
    elif out.size == x.size:
        probabilities = softmax(x)
        relative = sum_error(x.shape[1], unit) + FUNCTION * unit + 2 * unit * np.abs(x - top[:, None])
        value = probabilities.copy()
        value[np.arange(len(x)), chosen] -= 1
        error = probabilities * relative + 2 * unit
        yield Expectation((value / len(x)).reshape(out.shape), (error / len(x)).reshape(out.shape), "mean")


def _of_slot(
    definition: Definition, *, only_first: bool
) -> Callable[[CallOperands, int, float], Iterator[Expectation]]:
    """Return a definition that takes the number of the output."""

    def of_slot(call: CallOperands, slot: int, unit: float) -> Iterator[Expectation]:
        if not (slot and only_first):
            yield from definition(call, call.outputs[slot], unit)

    return of_slot


#: By `plain_name`. What they give beside their first output follows from nothing.
_OF_FIRST: dict[str, Definition] = by_name(
    {
        "matmul batchmatmul mm bmm linear dense": matrix_product,
        "conv1d conv2d conv3d convolution": convolution,
        "convtranspose1d convtranspose2d convtranspose3d conv2dtranspose": transposed_convolution,
        "dropout": _dropout,
        "sum reducesum": _reduction("sum"),
        "mean reducemean": _reduction("mean"),
        "reducemax amax max": either(of_two(np.maximum), _reduction("max")),
        "reducemin amin min": either(of_two(np.minimum), _reduction("min")),
        "groupnorm instancenorm1d instancenorm2d instancenorm3d": norm_of_groups,
        "batchnorm1d batchnorm2d batchnorm3d batchnorm": norm_of_batch,
    }
)
#: Those whose attributes the data must tell are found by trying.
_OF_ALL: dict[str, Definition] = ELEMENTWISE | by_name(
    {
        "addn": _sum_of_all,
        "biasadd": _biased,
        "mv dot vdot": _times_vector,
        "mseloss": _pairwise_loss(np.square),
        "l1loss": _pairwise_loss(np.abs),
        "normalize": _normalised,
        "maskedfill": _masked,
        "triu tril": _triangle,
        "reshape view flatten unflatten squeeze unsqueeze contiguous clone detach identity expanddims"
        " expand broadcastto expandas requiresgrad": _same,
        "to": either(_same, _cast),
        "transpose permute t swapaxes movedim": _permuted,
        "slice chunk split narrow select stridedslice unbind": _part,
        "getitem": _chosen,
        "cat concat stack": _joined,
        "repeatinterleave tile repeat": _repeated,
        "cast half float bfloat16 type": _cast,
        "embedding gather indexselect": _embedding,
        "embeddingbag": _bags,
        "unsortedsegmentsum": _scattered,
        "biasaddgrad": _column_sums,
        "softmax": _softmax(is_log=False),
        "logsoftmax": _softmax(is_log=True),
        "layernorm": norm_of_rows(centred=True),
        "rmsnorm": norm_of_rows(centred=False),
        "scaleddotproductattention": _attention,
        "crossentropy sparsesoftmaxcrossentropywithlogits": _cross_entropy,
    }
)
#: Operators of which the data must show what they take: which part it is, is a guess.
PARTS = frozenset(name for name, definition in _OF_ALL.items() if definition in (_part, _chosen))
#: By `plain_name`: takes what a call read and wrote, the number of the output, and the roundoff.
PRODUCTS = frozenset(
    name
    for name, definition in _OF_FIRST.items()
    if definition in (matrix_product, convolution, transposed_convolution)
)
DEFINITIONS = {name: _of_slot(definition, only_first=True) for name, definition in _OF_FIRST.items()}
DEFINITIONS |= {name: _of_slot(definition, only_first=False) for name, definition in _OF_ALL.items()}


def expectations(op_type: str, call: CallOperands, slot: int) -> Iterator[tuple[Expectation, bool]]:
    """Yield what an output may be by the definition of its operator, and whether with looser rounding.

    First with the arithmetic of float32 (float64 for float64); then, looser, with that of the type of the
    output, and for products of float32 with that of TF32, which rounds factors to 11 bits.
    """
    name = plain_name(op_type)
    definition = DEFINITIONS.get(name)
    if definition is None:
        return
    dtype = call.outputs[slot].dtype
    usual = working_roundoff(dtype)
    units = [usual, max(unit_roundoff(dtype), 2.0**-11 if name in PRODUCTS and usual == 2.0**-24 else 0.0)]
    for unit in units if units[1] > units[0] else units[:1]:
        for expectation in definition(call, slot, unit):
            if expectation.value.shape == call.outputs[slot].shape:
                yield expectation, unit > usual
