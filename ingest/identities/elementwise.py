"""Operators of which an element is computed of one element of each input, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import permutations

import numpy as np
from numpy.polynomial.hermite import hermval

from ingest.identities.definition import Array, CallOperands, Definition, Expectation, by_name, either, wide
from ingest.identities.limits import FUNCTION, unit_roundoff

#: Elements that must show a number that was not dumped.
_FEWEST = 4


def fitting(array: Array, out: Array) -> Array | None:
    """Return an input as it broadcasts to the output; None if it does not. It may lack axes of length 1."""
    if array.size == out.size:
        return wide(array).reshape(out.shape)
    return np.broadcast_to(wide(array), out.shape) if broadcasts(array.shape, out.shape) else None


def _binary(compute: Callable[[Array, Array], Array], size: Callable[[Array, Array], Array]) -> Definition:
    """Return the definition of an operator of two inputs; a scalar that was not dumped is found."""

    def definition(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
        given = call.operands[:2]
        operands = [each for each in (fitting(one, out) for one in given) if each is not None]
        if len(operands) < len(given):
            return
        if len(operands) == 1:
            yield from _with_scalar(compute, operands[0], out)
        elif operands:
            a, b = operands
            yield Expectation(compute(a, b), 2 * unit * size(a, b))

    return definition


def of_two(compute: Callable[[Array, Array], Array]) -> Definition:
    """Return the definition of a choice or comparison of elements of two inputs, which does not round."""

    def definition(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
        given = [fitting(each, out) for each in call.operands[:2]]
        if len(given) == 2 and given[0] is not None and given[1] is not None:
            yield Expectation(compute(given[0], given[1]).astype(out.dtype), None)

    return definition


def _with_scalar(compute: Callable[[Array, Array], Array], a: Array, out: Array) -> Iterator[Expectation]:
    shown = wide(out)
    scalar = _most_show(shown / a if compute is np.multiply else a / shown, a)
    if scalar is not None:
        value = compute(a, np.asarray(scalar))
        yield Expectation(value, 4 * unit_roundoff(out.dtype) * np.abs(value), f"scalar = {scalar:.6g}")


def _most_show(scalars: Array, of: Array) -> float | None:
    """Return the number that most elements show, but those that are zero; None if too few do."""
    is_usable = np.isfinite(scalars) & (np.abs(of) > 0)
    return float(np.median(scalars[is_usable])) if np.count_nonzero(is_usable) >= _FEWEST else None


def _linear(of_a: int, of_b: int) -> Definition:
    """Return the definition of a sum of two inputs with these signs; the second may be a scalar.

    What was not dumped is found: a scalar, or by what the subtrahend or second summand is multiplied (`alpha`
    of PyTorch).
    """

    def definition(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
        given = call.operands[:2]
        operands = [each for each in (fitting(one, out) for one in given) if each is not None]
        if not operands or len(operands) < len(given):
            return
        shown, a = wide(out), operands[0]
        if len(operands) == 1:
            scalars = (shown - of_a * a) * of_b
            of_most = _most_show(scalars, a)
            if of_most is None:
                return
            # Of the element that rounding hides the least: most may hide a small one, such as eps.
            clearest = scalars.flat[np.argmin(np.abs(a) + np.abs(shown))]
            for scalar in (of_most, float(clearest)):
                value = of_a * a + of_b * scalar
                error = 4 * unit_roundoff(out.dtype) * np.maximum(np.abs(value), np.abs(shown))
                yield Expectation(value, error, f"scalar = {scalar:.6g}")
            return
        one, other = of_a * a, of_b * operands[1]
        yield Expectation(one + other, 2 * unit * (np.abs(one) + np.abs(other)))
        kept, scaled = (other, one) if of_a < 0 else (one, other)
        with np.errstate(all="ignore"):
            alpha = _most_show((shown - kept) / scaled, scaled)
        if alpha is not None:
            error = 4 * unit_roundoff(out.dtype) * (np.abs(kept) + np.abs(alpha * scaled))
            yield Expectation(kept + alpha * scaled, error, f"alpha = {alpha:.6g}")

    return definition


def _unary(*formulas: tuple[str, Callable[[Array], Array], Callable[[Array, Array], Array]]) -> Definition:
    """Return the definition of a function; of several variants, the one that holds is told."""

    def definition(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
        x = fitting(call.numbers[0], out) if call.numbers else None
        if x is None:
            return
        for told, compute, size in formulas:
            value = compute(x)
            yield Expectation(value, FUNCTION * unit * size(x, value), told)

    return definition


def _relative(_: Array, y: Array) -> Array:
    return np.abs(y)


def _of_input(x: Array, _: Array) -> Array:
    return np.abs(x)


def _one(_: Array, y: Array) -> Array:
    return np.ones_like(y)


#: Where the error function is tabulated, how far apart, and its derivatives there over the factorials.
_KNOTS, _APART = np.arange(0, 6.1, 1 / 64), 1 / 64
_TAYLOR = [np.array([math.erf(each) for each in _KNOTS])] + [
    2
    / math.sqrt(math.pi)
    * np.exp(-(_KNOTS**2))
    * hermval(_KNOTS, [0] * k + [1])
    * (-1) ** k
    / math.factorial(k + 1)
    for k in range(6)
]


def _erf(x: Array) -> Array:
    """Return the error function, which numpy lacks, to the roundoff of float64: from a table of it."""
    size = np.minimum(np.abs(x), 6.0)  # 1 - erf(6) is below the roundoff
    place = np.rint(np.nan_to_num(size) / _APART).astype(np.intp)
    offset, value = size - place * _APART, np.zeros_like(size)
    for coefficients in reversed(_TAYLOR):
        value = value * offset + coefficients[place]
    return np.asarray(np.copysign(value, x))


def sigmoid(x: Array) -> Array:
    """Return the logistic function."""
    return np.asarray(1 / (1 + np.exp(-x)))


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + _erf(x / math.sqrt(2))))


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _leaky(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    x = fitting(call.numbers[0], out) if call.numbers else None
    if x is None:
        return
    slope = _most_show(wide(out) / x, np.where(x < 0, x, 0.0))
    value = np.where(x < 0, x * (slope or 0.0), x)
    told = "" if slope is None else f"slope = {slope:.6g}"
    yield Expectation(value, 4 * unit_roundoff(out.dtype) * np.abs(value), told)


#: The exponents that are tried where that was not dumped.
_EXPONENTS = (2.0, 3.0, 0.5, 4.0, -1.0, -0.5, 1.0, 1.5)


def _power(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    given = [fitting(each, out) for each in call.numbers[:2]]
    x, *exponents = (each for each in given if each is not None) if given else (None,)
    if x is None or len(exponents) < len(given) - 1:
        return
    for exponent in exponents or map(np.float64, _EXPONENTS):
        value = np.power(x, exponent)
        told = f"exponent = {exponent:g}" if not exponents else ""
        # Kernels multiply, and round in between to the type of the output.
        size = np.abs(value) * (1 + np.abs(exponent))
        yield Expectation(value, (FUNCTION * unit + unit_roundoff(out.dtype)) * size, told)


def _clamped(call: CallOperands, out: Array, _: float) -> Iterator[Expectation]:
    """Yield what lies between the bounds that the output shows."""
    x = fitting(call.numbers[0], out) if call.numbers else None
    if x is not None and out.size:
        low, high = float(out.min()), float(out.max())
        yield Expectation(np.clip(x, low, high).astype(out.dtype), None)


def _interpolated(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
    """Yield what lies between two inputs, by the weight that most elements show."""
    given = [each for one in call.tensors[:2] if (each := fitting(one, out)) is not None]
    if len(given) < 2:
        return
    way = given[1] - given[0]
    weight = _most_show((wide(out) - given[0]) / way, way)
    if weight is not None:
        error = 4 * unit * (np.abs(given[0]) + np.abs(given[1])) + unit_roundoff(out.dtype) * np.abs(given[0])
        yield Expectation(given[0] + weight * way, error, f"weight = {weight:.4g}")


# Gradients that frameworks have as operators of their own


def _of_gradient(derivative: Callable[[Array], Array]) -> Definition:
    """Return the definition of the gradient of an activation: that of the output times the derivative."""

    def definition(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
        inputs = [fitting(each, out) for each in call.tensors]
        known = [each for each in inputs if each is not None]
        for gradient, x in permutations(known[:2], 2) if len(known) == len(inputs) >= 2 else ():
            value = gradient * derivative(x)
            yield Expectation(value, FUNCTION * unit * np.abs(gradient) * (1 + np.abs(x)))

    return definition


def gelu_slope(x: Array) -> Array:
    """Return the derivative of the exact GELU."""
    return np.asarray(0.5 * (1 + _erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def gelu_tanh_slope(x: Array) -> Array:
    """Return the derivative of the GELU that is approximated by tanh."""
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return np.asarray(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x))


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether a tensor of a shape broadcasts to another shape."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


#: By the plain names of operators.
ELEMENTWISE: dict[str, Definition] = by_name(
    {
        "add tensoradd iadd adds": _linear(1, 1),
        "sub subtract isub subs": _linear(1, -1),
        "rsub": _linear(-1, 1),
        "mul multiply imul muls": _binary(np.multiply, lambda a, b: np.abs(a * b)),
        "div realdiv truediv truedivide divide divs": _binary(np.divide, lambda a, b: np.abs(a / b)),
        "maximum": of_two(np.maximum),
        "minimum": of_two(np.minimum),
        "relu": _unary(("", lambda x: np.maximum(x, 0), lambda x, _: np.zeros_like(x))),
        "gelu": _unary(("", _gelu, _of_input), ("tanh", _gelu_tanh, _of_input)),
        "fastgelu quickgelu": _unary(("", lambda x: x * sigmoid(1.702 * x), _of_input)),
        "silu swish": _unary(("", lambda x: x * sigmoid(x), _of_input)),
        "sigmoid": _unary(("", sigmoid, _relative)),
        "tanh": _unary(("", np.tanh, _relative)),
        "erf": _unary(("", _erf, _relative)),
        "exp": _unary(("", np.exp, lambda x, y: np.abs(y) * (1 + np.abs(x)))),
        "log": _unary(("", np.log, lambda _, y: 1 + np.abs(y))),
        "sqrt": _unary(("", np.sqrt, _relative)),
        "rsqrt": _unary(("", lambda x: 1 / np.sqrt(x), _relative)),
        "neg": _unary(("", np.negative, _relative)),
        "abs": _unary(("", np.abs, _relative)),
        "square": _unary(("", np.square, _relative)),
        "reciprocal": _unary(("", lambda x: 1 / x, _relative)),
        "sin": _unary(("", np.sin, _one)),
        "cos": _unary(("", np.cos, _one)),
        "log1p": _unary(("", np.log1p, lambda x, y: np.abs(x) / (1 + np.abs(x)) + np.abs(y))),
        "expm1": _unary(("", np.expm1, lambda x, y: np.abs(y) * (1 + np.abs(x)) + np.abs(x))),
        "softplus": _unary(("", lambda x: np.logaddexp(0, x), lambda x, y: np.abs(y) * (1 + np.abs(x)))),
        "elu": _unary(("", lambda x: np.where(x > 0, x, np.expm1(x)), _of_input)),
        "leakyrelu": _leaky,
        "relu6 hardtanh clamp clip clampmin clampmax": _clamped,
        "hardsigmoid": _unary(("", lambda x: np.clip(x / 6 + 0.5, 0, 1), _one)),
        "hardswish": _unary(("", lambda x: x * np.clip(x / 6 + 0.5, 0, 1), _of_input)),
        "pow": _power,
        "lerp": _interpolated,
        "lt less": of_two(np.less),
        "le lessequal": of_two(np.less_equal),
        "gt greater": of_two(np.greater),
        "ge greaterequal": of_two(np.greater_equal),
        "eq equal": of_two(np.equal),
        "ne notequal": of_two(np.not_equal),
        "relugrad": _of_gradient(lambda x: (x > 0).astype(np.float64)),
        "gelugrad": either(_of_gradient(gelu_slope), _of_gradient(gelu_tanh_slope)),
    }
)
