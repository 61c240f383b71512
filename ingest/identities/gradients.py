"""Gradients of parameters of modules, and of what calls gave: the sum of what those that read it pass back.

The latter is reverse-mode differentiation over the recorded flow of a step. It begins at the nearest
gradients that were recorded, so that errors do not add up over layers.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, permutations
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ingest.identities.definition import Array, CallOperands, Expectation, by_name, wide
from ingest.identities.elementwise import gelu_slope, gelu_tanh_slope, sigmoid
from ingest.identities.layers import EPS, NormalisedRows, as_multiplied, kernel_gradient, matrix_product
from ingest.identities.limits import FEW, FUNCTION, sum_error, unit_roundoff, working_roundoff
from ingest.identities.operators import (
    DEFINITIONS,
    ranges_of,
    softmax,
    summed_rows,
)
from ingest.reader.operator_kinds import CallKey, holders, is_container, is_output
from ingest.reader.step_flow import BY_GRAPH, FlowCall, FlowOperand, StepFlow

#: Those whose channels are the second axis, and whether they are transposed.
CONVOLUTIONS = {f"conv{kind}{axes}d": bool(kind) for kind in ("", "transpose") for axes in (1, 2, 3)}
#: Modules whose gradients are known, by `plain_name`.
KINDS = frozenset({"linear", "dense", "layernorm", "rmsnorm", "embedding", *CONVOLUTIONS})


def parameter_gradients(
    kind: str, parameter: str, x: Array, gradient: Array, shape: tuple[int, ...], *, way: str = ""
) -> Iterator[Expectation]:
    """Yield what one call of a module adds to the gradient of a parameter.

    Args:
        kind: the module, one of `KINDS`.
        parameter: `weight` or `bias`.
        x: what it read.
        gradient: the gradient of what it wrote; narrow, if autocast made it so.
        shape: the shape of the parameter.
        way: how the kernel of a convolution goes, as its output tells; "" if that is not known.
    """
    if not gradient.size or (kind in CONVOLUTIONS and gradient.ndim < 3):
        return
    unit = working_roundoff(gradient.dtype)
    if kind in CONVOLUTIONS:
        if parameter == "weight" and x.dtype.kind not in "iub":
            x = as_multiplied(x, gradient)
            yield from kernel_gradient(x, gradient, shape, unit, way, is_transposed=CONVOLUTIONS[kind])
            return
        gradient = gradient.swapaxes(1, -1)
    columns = wide(gradient).reshape(-1, gradient.shape[-1] if gradient.ndim else 1)
    if parameter == "bias":
        yield Expectation(columns.sum(0), sum_error(len(columns), unit) * np.abs(columns).sum(0))
    elif kind == "embedding":
        if x.dtype.kind in "iu" and x.size == len(columns) and len(shape) == 2:
            yield from summed_rows(x.reshape(-1), columns, shape, unit)
    elif x.size % len(columns) == 0 and x.dtype.kind not in "iub":
        error_of_sum = sum_error(len(columns), unit) + unit
        if kind in ("linear", "dense"):
            rows = as_multiplied(x, gradient).reshape(len(columns), -1)
            yield Expectation(columns.T @ rows, error_of_sum * (np.abs(columns).T @ np.abs(rows)))
        else:
            normal = NormalisedRows(wide(x).reshape(len(columns), -1), unit, centred=kind == "layernorm")
            for eps in EPS if normal.x.shape == columns.shape else ():  # else it is of another call
                value, error = normal.normalised(eps)
                size = np.abs(columns) * (np.abs(value) * error_of_sum + error)
                yield Expectation((columns * value).sum(0), size.sum(0), f"eps = {eps:.6g}")


def added(parts: Sequence[Expectation], narrowest: float, divisor: int = 1) -> Expectation:
    """Return the sum of what calls, passes or ranks add to a gradient, divided.

    Args:
        parts: what each adds.
        narrowest: the unit roundoff of the type in which each was computed.
        divisor: what the sum is divided by: the number of ranks for their mean.
    """
    value = np.sum([part.value for part in parts], axis=0)
    sizes = np.sum([np.abs(part.value) for part in parts], axis=0)
    error = np.sum([np.asarray(part.error) for part in parts], axis=0)
    error = error + (narrowest + sum_error(len(parts) + 1, 2.0**-24)) * sizes
    return Expectation(value / divisor, error / divisor, parts[0].told)


def scaled(part: Expectation, actual: Array) -> Expectation | None:
    """Return an expectation times the factor that most elements show; None if they show none, or 1."""
    shown = wide(actual)
    is_clear = np.abs(part.value) > 8 * np.asarray(part.error)
    if np.count_nonzero(is_clear) < 4:
        return None
    factor = float(np.median(shown[is_clear] / part.value[is_clear]))
    if not np.isfinite(factor) or factor <= 0 or abs(factor - 1) < 64 * unit_roundoff(actual.dtype):
        return None
    error = np.asarray(part.error) * factor + 8 * 2.0**-24 * np.abs(part.value) * factor
    return Expectation(part.value * factor, error, f"factor = {factor:.4g}")


def share_of(rest: Expectation, whole: Array) -> float:
    """Return the share of an array that most elements of a rest show; 0 if they show none below 1."""
    is_clear = (np.abs(rest.value) > 8 * np.asarray(rest.error)) & (whole != 0)
    if np.count_nonzero(is_clear) < 4:
        return 0.0
    share = float(np.median(rest.value[is_clear] / whole[is_clear]))
    return share if 0 < share < 1 else 0.0


GRADIENT = "Gradient"
#: The end of the name of a gradient of what a module gave, which may be a tuple.
OF_ACTIVATION = re.compile(r"\.output(\.\d+)*$")
#: How many calls without a recorded gradient are gone through for one tensor.
_MOST = 64
#: Elements that tell which variant of a function it is.
_SAMPLE = 4096
#: How near the eps that data show must be to a usual one to be that.
_SAME_EPS = 0.1
#: Takes what a call read and wrote, the number of an input, the gradients of its outputs, and the roundoff of
#: its arithmetic; returns what it passes back to that input, None if that is not known.
_Backward: TypeAlias = Callable[[CallOperands, int, Sequence["Passed"], float], "Passed | None"]


class Passed(NamedTuple):
    """A gradient in float64, and how far what was computed may be from it; arrays of one shape."""

    value: Array
    error: Array

    def reshape(self, *shape: int) -> Passed:
        """Return the same in another shape."""
        return Passed(self.value.reshape(shape), self.error.reshape(shape))

    def transposed(self) -> Passed:
        """Return the same with the last two axes swapped."""
        return Passed(self.value.swapaxes(-1, -2), self.error.swapaxes(-1, -2))


def passed_back(flow: StepFlow) -> dict[tuple[CallKey, int], FlowOperand]:
    """Return the gradients of what calls of modules gave, by the call and the number of the output.

    A backward pass goes through the calls of a module from the last to the first. Between two passes, calls
    or gradients of parameters are recorded; the passes come in the order of their calls. Where calls have no
    gradient, as without autograd, one is of the last call before it that has none yet.
    """
    calls: dict[str, list[_ModuleCall]] = defaultdict(list)
    passes: dict[str, dict[int, list[FlowOperand]]] = defaultdict(lambda: defaultdict(list))
    number = 0
    for key, call in flow.calls.items():
        if key.op_type == GRADIENT and OF_ACTIVATION.search(key.op_name):
            passes[key.op_name][number] += call.outputs[:1]
        elif key.op_type == GRADIENT:
            number += 1
        elif is_container(key.op_type) and not key.graph:
            number += 1
            for slot, end in enumerate(_ends(call)):
                calls[f"{key.op_name}.output{end}"].append(_ModuleCall(number, (key, slot)))
    return dict(chain(*(_paired(calls[name], each) for name, each in passes.items())))


class _ModuleCall(NamedTuple):
    number: int
    """How much was recorded before it."""
    output: tuple[CallKey, int]


def _ends(call: FlowCall) -> list[str]:
    return [f".{slot}" for slot in range(len(call.outputs))] if len(call.outputs) > 1 else [""]


def _paired(
    calls: Sequence[_ModuleCall], passes: Mapping[int, Sequence[FlowOperand]]
) -> Iterator[tuple[tuple[CallKey, int], FlowOperand]]:
    """Yield calls of a module with their gradients, of one pass after another; nothing if one has several."""
    count = sum(map(len, passes.values()))
    left, ordered = list(calls), iter(calls)
    for number, gradients in passes.items() if count <= len(calls) else ():
        if count == len(calls):
            own = [*islice(ordered, len(gradients))]
        else:
            own = [each for each in left if each.number <= number][-len(gradients) :]
            left = [each for each in left if each not in own]
        yield from zip((each.output for each in reversed(own)), gradients, strict=False)


class ActivationGradients:
    """What gradients of a step should be, by what was read and passed back."""

    def __init__(
        self,
        flow: StepFlow,
        kind_of: Callable[[FlowCall], str],
        operands_of: Callable[[FlowCall], CallOperands | None],
        recorded: Callable[[FlowCall], Array | None],
        added_to: Mapping[int, Sequence[FlowOperand]],
    ) -> None:
        """Take the flow of a step.

        Args:
            flow: which call read what.
            kind_of: what a call computes, by the names of `ingest.identities.operators`.
            operands_of: what it read and wrote; None if some of it was not dumped.
            recorded: the gradient of what a module gave; None if it was not dumped.
            added_to: by row, the outputs of modules that are sums in which it is an addend.
        """
        self._flow, self._kind_of = flow, kind_of
        self._operands_of, self._recorded = operands_of, recorded
        self._added_to = added_to
        self._left = 0
        self._made: dict[int, Passed | None] = {}
        calls = flow.calls.values()
        self._modules = {
            each.key.op_name for each in calls if is_container(each.op_type) and kind_of(each) in _BACKWARD
        }

    def expectations(self, output: FlowOperand, actual: Array) -> Iterator[Expectation]:
        """Yield what the gradient of an output should be, as far as its readers tell."""
        rows = self._alike(output.row)
        readers = self._readers(rows)
        self._left = _MOST
        self._made.clear()
        if len(readers) == 1 and self._added_to.keys().isdisjoint(rows):
            yield from self._of_product(*readers[0], actual)
        total = self._sum(rows, actual.dtype)
        if total is not None and total.value.shape == actual.shape:
            yield total
            if self._ends_in_loss(readers) and (factor := scaled(total, actual)) is not None:
                yield factor  # the loss may have been divided, or scaled

    def _ends_in_loss(self, readers: Sequence[tuple[FlowCall, FlowOperand]]) -> bool:
        """Return whether a loss alone reads a tensor, perhaps in another shape."""
        inner = [self._readers(self._alike(out.row)) for call, _ in readers for out in call.outputs]
        kinds = {self._kind_of(call) for call, _ in (*readers, *chain(*inner))}
        return "crossentropy" in kinds and kinds <= {"crossentropy", "reshape", "view", "flatten", "float"}

    def _of_product(self, call: FlowCall, operand: FlowOperand, actual: Array) -> Iterator[Expectation]:
        """Yield what a linear layer passes back; a large one is checked by projection."""
        given = self._recorded_of(self._alike(call.outputs[0].row)) if call.outputs else None
        operands = self._operands_of(call) if given is not None else None
        if given is not None and operands is not None and self._kind_of(call) in ("linear", "dense"):
            weight = _weight_of(operands)
            if weight is not None and not operand.slot:
                product = CallOperands([given, weight], outputs=[actual])
                yield from matrix_product(product, actual, working_roundoff(actual.dtype))

    def _alike(self, row: int) -> set[int]:
        """Return the outputs that are one tensor: of modules, and of the call in them that made it."""
        found, new = {row}, [row]
        while new:
            passed = [self._flow.producer(new[-1]), *self._flow.consumers(new.pop())]
            ends = {
                end
                for each in passed
                if each is not None and each.by != BY_GRAPH
                for end in (each.source, each.target)
                if is_output(self._flow.operands[end].io)
            }
            new += ends - found
            found |= ends
        return found

    def _readers(self, rows: set[int]) -> list[tuple[FlowCall, FlowOperand]]:
        """Return the calls that read a tensor and pass back to it; those within a known module are it."""
        found = []
        for row in sorted(rows):
            for passing in self._flow.consumers(row):
                call, operand = self._flow.call_of[passing.target], self._flow.operands[passing.target]
                is_reader = passing.by != BY_GRAPH and not is_output(operand.io)
                is_known = self._kind_of(call) in _BACKWARD and self._modules.isdisjoint(
                    holders(call.key.op_name)
                )
                if is_reader and is_known and rows.isdisjoint(each.row for each in call.outputs):
                    found.append((call, operand))
        return found

    def _recorded_of(self, rows: set[int]) -> Array | None:
        found = (self._recorded(self._flow.call_of[row]) for row in sorted(rows))
        return next((each for each in found if each is not None), None)

    def _sum(self, rows: set[int], dtype: np.dtype[Any]) -> Expectation | None:
        sums = [each for row in sorted(rows) for each in self._added_to.get(row, ())]
        parts = [self._back(*reader, dtype) for reader in self._readers(rows)]
        parts += [self._passed(each, dtype) for each in sums]
        known = [Expectation(*each) for each in parts if each is not None]
        return added(known, unit_roundoff(dtype)) if known and len(known) == len(parts) else None

    def _back(self, call: FlowCall, operand: FlowOperand, dtype: np.dtype[Any]) -> Passed | None:
        self._left -= 1
        operands, kind = self._operands_of(call) if self._left > 0 else None, self._kind_of(call)
        given = call.positional
        slot = given.index(operand) if operand in given else None
        if operands is None or slot is None or (slot and kind not in _OF_ALL_INPUTS):
            return None
        passed = [] if kind == "crossentropy" else [self._passed(each, dtype) for each in call.outputs]
        known = [each for each in passed if each is not None]
        if len(known) < len(passed):
            return None
        found = _BACKWARD[kind](operands, slot, known, working_roundoff(dtype))
        return found and found.reshape(*operands.inputs[slot].shape)

    def _passed(self, output: FlowOperand, dtype: np.dtype[Any]) -> Passed | None:
        rows = self._alike(output.row)
        key = min(rows)
        if key not in self._made:
            given = self._recorded_of(rows)
            found = (
                self._sum(rows, dtype) if given is None else Expectation(wide(given), np.zeros(given.shape))
            )
            self._made[key] = None if found is None else Passed(found.value, np.asarray(found.error))
        made = self._made[key]
        if made is None or made.value.size != math.prod(output.shape):
            return None
        return made.reshape(*output.shape)


def _product(a: Passed, b: Array, unit: float) -> Passed:
    share, size = sum_error(b.shape[-2] + 1, unit) + unit, np.abs(b)
    return Passed(a.value @ b, share * (np.abs(a.value) @ size) + a.error @ size)


def _weight_of(call: CallOperands) -> Array | None:
    weight = call.named.get("weight", call.tensors[1] if len(call.tensors) > 1 else None)
    return weight if weight is not None and weight.ndim == 2 else None


def _through_linear(call: CallOperands, _: int, passed: Sequence[Passed], unit: float) -> Passed | None:
    weight = _weight_of(call)
    return None if weight is None else _product(passed[0].reshape(-1, len(weight)), wide(weight), unit)


def _through_product(call: CallOperands, slot: int, passed: Sequence[Passed], unit: float) -> Passed | None:
    """Of two matrices, or of as many on both sides."""
    a, b = map(wide, call.tensors[:2])
    if slot > 1 or a.ndim < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        return None
    if not slot:
        return _product(passed[0], b.swapaxes(-1, -2), unit)
    return _product(passed[0].transposed(), a, unit).transposed()


def _through_norm(*, centred: bool) -> _Backward:
    def backward(call: CallOperands, _: int, passed: Sequence[Passed], unit: float) -> Passed | None:
        x, out = wide(call.inputs[0]), wide(call.outputs[0])
        weight, bias = call.named.get("weight"), call.named.get("bias")
        if weight is None and len(call.tensors) > 1:
            return None
        length = x.shape[-1] if weight is None else weight.size
        scale = np.ones(length) if weight is None else wide(weight).reshape(-1)
        rows = NormalisedRows(x.reshape(-1, length), unit, centred=centred)
        shown = rows.eps_of(out.reshape(-1, length), scale, 0.0 if bias is None else wide(bias).reshape(-1))
        near = min(EPS, key=lambda each: abs(each - shown))
        eps = near if abs(near - shown) < _SAME_EPS * near else shown
        normal, rounding = rows.normalised(eps)
        root = 1 / np.sqrt(rows.variance + eps)

        def spread_over(each: Array, by: Array) -> Array:
            """Return what rows of magnitudes come to in the worst case."""
            mean = np.mean(each, 1, keepdims=True) * centred
            return np.asarray(each + mean + by * np.mean(each * by, 1, keepdims=True))

        gradient = passed[0].value.reshape(-1, length) * scale
        along = np.mean(gradient * normal, 1, keepdims=True)
        value = root * (gradient - centred * np.mean(gradient, 1, keepdims=True) - normal * along)
        size, by = np.abs(gradient), np.abs(normal)
        relative = rows.variance_error / (rows.variance + eps) / 2 + rows.sums + FEW * unit
        error = relative * spread_over(size, by) + spread_over(
            passed[0].error.reshape(-1, length) * np.abs(scale), by
        )
        error += rounding * np.abs(along) + by * np.mean(size * rounding, 1, keepdims=True)
        return Passed(value, root * error)

    return backward


def _through_function(kind: str, **slopes: Callable[[Array], Array]) -> _Backward:
    """Return what passes a function of single elements: of its variants, that which gave the output."""

    def backward(call: CallOperands, _: int, passed: Sequence[Passed], unit: float) -> Passed | None:
        x, out = wide(call.inputs[0]).reshape(call.outputs[0].shape), wide(call.outputs[0])
        some = CallOperands([x.reshape(-1)[:_SAMPLE]], outputs=[out.reshape(-1)[:_SAMPLE]])
        made = {each.told: each.value for each in DEFINITIONS[kind](some, 0, unit)}
        told = min(
            made, key=lambda each: float(np.nansum(np.abs(made[each] - some.outputs[0]))), default=None
        )
        if told is None:
            return None
        slope = slopes[told or "usual"](x)
        value = passed[0].value * slope
        error = FUNCTION * unit * np.abs(passed[0].value) * (1 + np.abs(x)) + passed[0].error * np.abs(slope)
        return Passed(value, error)

    return backward


def _through_dropout(call: CallOperands, _: int, passed: Sequence[Passed], unit: float) -> Passed | None:
    """Where the input is 0, nothing tells whether it was kept."""
    x, out = wide(call.inputs[0]), wide(call.outputs[0])
    if x.shape != out.shape or not np.any(is_kept := (x != 0) & (out != 0)):
        return None
    factor = float(np.median(out[is_kept] / x[is_kept]))
    value = np.where(is_kept, passed[0].value * factor, 0.0)
    error = FEW * unit * np.abs(value) + passed[0].error * factor
    return Passed(value, np.where(x == 0, np.inf, error))


def _through_softmax(call: CallOperands, _: int, passed: Sequence[Passed], unit: float) -> Passed | None:
    out = wide(call.outputs[0])
    if call.inputs[0].shape != out.shape or not np.allclose(out.sum(-1), 1, atol=0.01):
        return None
    return _through_weights(softmax(wide(call.inputs[0])), FUNCTION * unit, passed[0], unit)


def _through_weights(weights: Array, relative: Array | float, passed: Passed, unit: float) -> Passed:
    """Return what a softmax along the last axis passes back.

    Args:
        weights: what it gave.
        relative: how far off they may be, as a share of them.
        passed: the gradient of them.
        unit: the roundoff of the arithmetic.
    """
    along = np.sum(passed.value * weights, -1, keepdims=True)
    size = np.abs(passed.value)
    around = size + np.sum(size * weights, -1, keepdims=True)
    error = passed.error + np.sum(passed.error * weights, -1, keepdims=True)
    error = error + (2 * relative + sum_error(weights.shape[-1], unit)) * around
    return Passed(weights * (passed.value - along), weights * error)


def _through_attention(call: CallOperands, slot: int, passed: Sequence[Passed], unit: float) -> Passed | None:
    """Of queries, keys and values with as many heads; causal, or without a mask."""
    if len(call.inputs) != 3 or len({each.shape[:-2] for each in call.inputs}) > 1:
        return None
    q, k, v = map(wide, call.inputs)
    out, root = wide(call.outputs[0]), math.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2) / root
    masked = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    weights = min(map(softmax, (scores, masked)), key=lambda each: float(np.abs(each @ v - out).sum()))
    doubt = (sum_error(q.shape[-1], unit) + 2 * unit) * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)) / root
    relative = 2 * doubt.max(-1, keepdims=True) + sum_error(k.shape[-2], unit) + FUNCTION * unit
    relative = relative + unit_roundoff(call.outputs[0].dtype)
    if slot == 2:
        turned = weights.swapaxes(-1, -2)
        share = relative + sum_error(q.shape[-2], unit)
        error = turned @ (share * np.abs(passed[0].value) + passed[0].error)
        return Passed(turned @ passed[0].value, error)
    of_scores = _through_weights(weights, relative, _product(passed[0], v.swapaxes(-1, -2), unit), unit)
    value, error = _product(of_scores.transposed(), q, unit) if slot else _product(of_scores, k, unit)
    return Passed(value / root, error / root)


def _through_binary(*factors: Callable[[Array, Array], Array]) -> _Backward:
    """Return what passes an operator of two inputs: times a factor, and summed where it broadcasts."""

    def backward(call: CallOperands, slot: int, passed: Sequence[Passed], unit: float) -> Passed | None:
        if len(call.inputs) == 1:
            return _through_scalar(call.inputs[0], call.outputs[0], passed[0], unit)
        if len(call.inputs) != 2 or slot > 1:
            return None
        shape, own = passed[0].value.shape, call.inputs[slot].shape
        factor = np.broadcast_to(factors[slot](*map(wide, call.inputs)), shape)
        value, error = passed[0].value * factor, passed[0].error * np.abs(factor)
        error = error + 2 * unit * np.abs(value)
        wider = (1,) * (len(shape) - len(own)) + own
        axes = tuple(axis for axis, length in enumerate(wider) if length != shape[axis])
        if axes:
            error = error + sum_error(math.prod(shape[axis] for axis in axes), unit) * np.abs(value)
            value, error = value.sum(axes), error.sum(axes)
        return Passed(value, error)

    return backward


def _through_scalar(x: Array, out: Array, passed: Passed, unit: float) -> Passed | None:
    """Return what passes an operator whose other input is a number that was not dumped."""
    wide_x, shown = wide(x).reshape(out.shape), wide(out)
    centred = wide_x - wide_x.mean()
    slope = float(np.sum(centred * shown) / np.sum(centred**2))
    rest = shown - slope * wide_x
    slack = 4 * FEW * max(unit, unit_roundoff(out.dtype)) * (np.abs(shown) + np.abs(slope * wide_x))
    if not np.all(np.abs(rest - np.median(rest)) <= slack):
        return None
    value = passed.value * slope
    error = FEW * max(unit, unit_roundoff(out.dtype)) * np.abs(value) + passed.error * abs(slope)
    return Passed(value, error)


def _through_view(call: CallOperands, _: int, passed: Sequence[Passed], __: float) -> Passed | None:
    return passed[0] if passed[0].value.size == call.inputs[0].size else None


def _through_transpose(call: CallOperands, _: int, passed: Sequence[Passed], __: float) -> Passed | None:
    x, out = call.inputs[0], call.outputs[0]
    for order in permutations(range(x.ndim)) if x.ndim <= 5 else ():
        if tuple(x.shape[axis] for axis in order) == out.shape and np.array_equal(x.transpose(order), out):
            back = np.argsort(order)
            return Passed(passed[0].value.transpose(back), passed[0].error.transpose(back))
    return None


def _through_parts(call: CallOperands, _: int, passed: Sequence[Passed], __: float) -> Passed | None:
    """Into the ranges of which the outputs are copies, and zeros elsewhere."""
    x = call.inputs[0]
    value, error = np.zeros(x.shape), np.zeros(x.shape)
    for out, each in zip(call.outputs, passed, strict=True):
        alike = (
            place
            for place in ranges_of(x, out.shape)
            if np.array_equal(x[place].flat[:1], out.flat[:1])
            and np.array_equal(x[place].reshape(out.shape), out)
        )
        place = next(alike, None)
        if place is None:
            return None
        value[place] += each.value.reshape(value[place].shape)
        error[place] += each.error.reshape(value[place].shape)
    return Passed(value, error)


def _through_cross_entropy(call: CallOperands, _: int, __: Sequence[Passed], unit: float) -> Passed | None:
    """Of a mean whose own gradient is 1."""
    wanted = CallOperands(call.inputs, outputs=[np.empty(call.inputs[0].shape)])
    made = next(DEFINITIONS["crossentropy"](wanted, 0, unit), None)
    return made and Passed(made.value, np.asarray(made.error))


#: Those that pass something back to other inputs than the first.
_OF_ALL_INPUTS = frozenset(
    (
        *("matmul", "bmm", "mm", "batchmatmul", "scaleddotproductattention"),
        *("add", "iadd", "sub", "isub", "mul", "imul", "div", "truediv"),
    )
)
#: By `plain_name`.
_BACKWARD: dict[str, _Backward] = by_name(
    {
        "linear dense": _through_linear,
        "matmul bmm mm batchmatmul": _through_product,
        "layernorm": _through_norm(centred=True),
        "rmsnorm": _through_norm(centred=False),
        "relu": _through_function("relu", usual=lambda x: (x > 0).astype(np.float64)),
        "gelu": _through_function("gelu", usual=gelu_slope, tanh=gelu_tanh_slope),
        "silu swish": _through_function("silu", usual=lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x)))),
        "sigmoid": _through_function("sigmoid", usual=lambda x: sigmoid(x) * (1 - sigmoid(x))),
        "tanh": _through_function("tanh", usual=lambda x: 1 - np.tanh(x) ** 2),
        "dropout": _through_dropout,
        "softmax": _through_softmax,
        "scaleddotproductattention": _through_attention,
        "add iadd": _through_binary(lambda a, _: np.ones_like(a), lambda _, b: np.ones_like(b)),
        "sub isub": _through_binary(lambda a, _: np.ones_like(a), lambda _, b: -np.ones_like(b)),
        "mul imul": _through_binary(lambda _, b: b, lambda a, _: a),
        "div truediv": _through_binary(lambda _, b: 1 / b, lambda a, b: -a / b**2),
        "reshape view flatten unflatten squeeze unsqueeze contiguous clone identity to float": _through_view,
        "transpose permute t swapaxes movedim": _through_transpose,
        "chunk split getitem narrow unbind": _through_parts,
        "crossentropy": _through_cross_entropy,
    }
)
