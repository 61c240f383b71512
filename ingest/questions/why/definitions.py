"""What operators compute, as far as it tells why a result is NaN or Inf.

Each definition is a list of conditions on the elements that a bad result was computed from, each with the
reason that it is. All of them are over float64 arrays with one entry for each bad element.

Sources: IEEE 754-2019, section 7 (invalid operation, division by zero, overflow) and section 9.2 (functions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.dtypes import LIMITS

Numbers: TypeAlias = npt.NDArray[np.float64]
Condition: TypeAlias = Callable[..., npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Definition:
    """An operator that computes each element of its output from one element of each input."""

    operands: int
    """How many inputs it computes with; further ones are parameters of it."""
    conditions: tuple[tuple[str, Condition], ...] = ()
    """Reasons, of which the first counts whose condition holds."""
    result: str = ""
    """What the result is called, if finite numbers can give one beyond the largest of its type."""


def _infinity_minus_infinity(*terms: Numbers) -> npt.NDArray[np.bool_]:
    stacked = np.stack(terms)
    return np.asarray((stacked == np.inf).any(axis=0) & (stacked == -np.inf).any(axis=0))


def _unary(reason: str, condition: Condition, result: str = "") -> Definition:
    return Definition(1, ((reason, condition),), result)


_DIVISION = Definition(
    2,
    (
        ("zero divided by zero", lambda x, y: (x == 0) & (y == 0)),
        ("division by zero", lambda x, y: (y == 0) & np.isfinite(x)),
        ("infinity divided by infinity", lambda x, y: np.isinf(x) & np.isinf(y)),
    ),
    "quotient",
)
_PRODUCT = Definition(
    2,
    (("zero times infinity", lambda x, y: ((x == 0) & np.isinf(y)) | (np.isinf(x) & (y == 0))),),
    "product",
)
_SUM = Definition(2, (("infinity minus infinity", _infinity_minus_infinity),), "sum")
_DIFFERENCE = Definition(
    2, (("infinity minus infinity", lambda x, y: _infinity_minus_infinity(x, -y)),), "difference"
)
_LOGARITHM = _unary("logarithm of a number that is not positive", lambda x: x <= 0)
_POWER = Definition(
    2,
    (
        ("negative power of zero", lambda x, y: (x == 0) & (y < 0)),
        ("power of a negative number that is not whole", lambda x, y: (x < 0) & (y != np.floor(y))),
    ),
    "power",
)
_ROOT = _unary("square root of a negative number", lambda x: x < 0)
_INVERSE_ROOT = Definition(
    1,
    (
        ("square root of a negative number", lambda x: x < 0),
        ("division by zero: its root is zero", lambda x: x == 0),
    ),
)
_RECIPROCAL = _unary("division by zero", lambda x: x == 0, "reciprocal")

#: By `plain_name`: of MindSpore and ACL (`RealDiv`), PyTorch (`true_divide`), ATen (`div`).
ELEMENTWISE: dict[str, Definition] = {
    **dict.fromkeys(("log", "log2", "log10"), _LOGARITHM),
    "log1p": _unary("logarithm of a number that is not positive", lambda x: x <= -1),
    "sqrt": _ROOT,
    **dict.fromkeys(("rsqrt", "invsqrt"), _INVERSE_ROOT),
    **dict.fromkeys(("reciprocal", "inv"), _RECIPROCAL),
    **dict.fromkeys(
        ("div", "realdiv", "truediv", "truedivide", "divide", "floordiv", "floordivide", "divs", "xdivy"),
        _DIVISION,
    ),
    **dict.fromkeys(("mod", "floormod", "remainder", "fmod"), _unary("remainder of infinity", np.isinf)),
    **dict.fromkeys(("mul", "multiply", "muls"), _PRODUCT),
    **dict.fromkeys(("add", "biasadd", "tensoradd", "adds", "iadd"), _SUM),
    **dict.fromkeys(("sub", "subtract", "subs", "isub"), _DIFFERENCE),
    "exp": Definition(1, (), "exponential"),
    "expm1": Definition(1, (), "exponential"),
    "sinh": Definition(1, (), "hyperbolic sine"),
    "cosh": Definition(1, (), "hyperbolic cosine"),
    "square": Definition(1, (), "square"),
    **dict.fromkeys(("pow", "power", "pows"), _POWER),
    **dict.fromkeys(
        ("cast", "to", "type", "half", "bfloat16", "npudtypecast"), Definition(1, (), "cast value")
    ),
    **dict.fromkeys(("asin", "arcsin"), _unary("arcsine of a number beyond 1", lambda x: np.abs(x) > 1)),
    **dict.fromkeys(("acos", "arccos"), _unary("arccosine of a number beyond 1", lambda x: np.abs(x) > 1)),
    **dict.fromkeys(
        ("acosh", "arccosh"), _unary("inverse hyperbolic cosine of a number below 1", lambda x: x < 1)
    ),
    **dict.fromkeys(
        ("atanh", "arctanh"),
        _unary("inverse hyperbolic tangent of a number not within 1", lambda x: np.abs(x) >= 1),
    ),
    **dict.fromkeys(("sin", "cos", "tan"), _unary("sine, cosine or tangent of infinity", np.isinf)),
    **dict.fromkeys(
        ("erfinv",), _unary("inverse error function of a number not within 1", lambda x: np.abs(x) >= 1)
    ),
    **dict.fromkeys(
        ("lgamma", "digamma"),
        _unary("gamma function at zero or a negative whole number", lambda x: (x <= 0) & (x == np.floor(x))),
    ),
}

#: Operators that compute each row of their output from the same row of their first input.
SOFTMAX = frozenset(["softmax", "logsoftmax", "safesoftmax", "softmaxv", "logsumexp", "scaledmaskedsoftmax"])
#: Operators whose results are sums over many elements, with what they sum.
SUMS = {
    **dict.fromkeys(("reducesum", "sum", "reducesumd", "addn", "cumsum"), "sum"),
    **dict.fromkeys(("reducemean", "mean"), "sum for a mean"),
    **dict.fromkeys(
        (
            "matmul",
            "batchmatmul",
            "mm",
            "bmm",
            "linear",
            "addmm",
            "dense",
            "einsum",
            "conv2d",
            "conv3d",
            "conv1d",
        ),
        "sum of products",
    ),
    **dict.fromkeys(("squaresumall", "l2loss", "norm", "lpnorm"), "sum of squares"),
    **dict.fromkeys(("reduceprod", "prod", "cumprod"), "product"),
}


def reasons_of(
    definition: Definition, operands: Sequence[Numbers | None], result: Numbers, dtype: np.dtype[Any]
) -> list[str]:
    """Return the reason for each bad element; "" where the definition tells none.

    Args:
        definition: of the operator.
        operands: by input, the elements that the bad ones were computed from; None if they are not known.
        result: the bad elements.
        dtype: the type of the output.
    """
    reasons = np.full(len(result), "", object)
    used = [operand for operand in operands[: definition.operands] if operand is not None]
    if len(used) < definition.operands:
        return list(reasons)
    with np.errstate(all="ignore"):
        for reason, condition in definition.conditions:
            reasons[(reasons == "") & condition(*used)] = reason
        if definition.result:
            is_beyond = np.isinf(result) & np.all(np.isfinite(used), axis=0)
            reasons[(reasons == "") & is_beyond] = beyond(definition.result, dtype)
    return list(reasons)


def reasons_of_rows(rows: npt.NDArray[np.float64]) -> list[str]:
    """Return why a softmax over each of these rows is bad; "" where it should not be.

    Args:
        rows: the inputs, (row, element).
    """
    reasons = np.full(len(rows), "", object)
    reasons[(rows == np.inf).any(axis=1)] = "softmax of a row with infinity: infinity minus infinity"
    reasons[(rows == -np.inf).all(axis=1)] = "softmax of a row that is fully masked"
    return list(reasons)


def beyond(result: str, dtype: np.dtype[Any]) -> str:
    """Return that a result does not fit its type, with the largest number of the type."""
    return f"{result} beyond the largest {dtype.name}, {LIMITS[dtype.name]:.6g}"
