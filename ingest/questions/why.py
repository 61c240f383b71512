"""Why an operator produced NaN or Inf: which elements of its inputs did it, by the operator's definition.

Each definition is a list of conditions on the elements that a bad result was computed from, each with the
reason that it is. All of them are over float64 arrays with one entry for each bad element. Memory: a piece of
the output, and the range of each input that it was computed from, both bounded.

Sources: IEEE 754-2019, section 7 (invalid operation, division by zero, overflow) and section 9.2 (functions).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingest.identities.operators import plain_name
from ingest.reader.tensor import Tensor
from ingest.reader.text import Plain, counted, value_text
from workers.arrays.comparison import is_real
from workers.arrays.dtypes import LIMITS, from_name
from workers.errors import UsageError
from workers.model import MIB


@dataclass(frozen=True, slots=True)
class WhyRow(Plain):
    """The elements of an input that became one element of the output."""

    input: int
    at: str
    """Which elements these are, as numpy writes it: `1, 3, :`."""
    low: float
    """The least of them that is finite; NaN if none is."""
    high: float


@dataclass(frozen=True, slots=True)
class WhyElement(Plain):
    """One element of the output that is bad, and what the inputs held at its place."""

    index: tuple[int, ...]
    value: float
    inputs: tuple[float | None, ...]
    """By input: the element that it was computed from; None if that is not one element, or not known."""
    reason: str
    rows: tuple[WhyRow, ...] = ()
    """Of inputs with more axes, or longer ones: the rows from which the element was computed."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; numbers that are not finite as the texts `NaN`, `Inf`, `-Inf`."""
        inputs = [_plain(value) for value in self.inputs]
        return Plain.to_dict(self) | {"value": _plain(self.value), "inputs": inputs}


@dataclass(frozen=True, slots=True)
class WhyReason(Plain):
    """A reason by the definition of the operator, and for how many elements it holds."""

    reason: str
    """Such as `logarithm of a negative number`; "" if the reason is not known."""
    elements: int


@dataclass(frozen=True, slots=True)
class WhyAnswer(Plain):
    """Why an operator produced NaN or Inf."""

    tensor: str
    """The name of the tensor with the bad elements: an output, or an input that was bad already."""
    inputs: tuple[str, ...]
    """The names of the inputs, in the order of `WhyElement.inputs`."""
    reasons: tuple[WhyReason, ...]
    elements: tuple[WhyElement, ...]
    """The first bad elements, at most 10."""
    bad: int
    """The number of bad elements in the part of the tensor that was looked at."""
    examined: int
    """The number of elements that were looked at, from the first one."""
    size: int

    @property
    def summary(self) -> str:
        """The reasons with their numbers of elements, in one line; "" if none is known."""
        examined = counted(self.examined, "element")
        return "; ".join(f"{of.reason} ({of.elements} of {examined})" for of in self.reasons if of.reason)

    @property
    def first(self) -> str:
        """The first bad element and what the inputs held there, in one line."""
        return _element_line(self.elements[0], is_output=bool(self.inputs))

    def lines(self, elements: int) -> Iterator[str]:
        """Yield the reasons, then the first elements with what the inputs held at their places."""
        yield self.summary or f"{self.bad} of {counted(self.examined, 'element')} of {self.tensor}"
        if self.examined < self.size:
            yield f"the first {self.examined} of {counted(self.size, 'element')} were looked at"
        for element in self.elements[:elements]:
            yield _element_line(element, is_output=bool(self.inputs))
        if self.bad > elements:
            yield f"and {self.bad - min(elements, len(self.elements))} more"


def _element_line(element: WhyElement, *, is_output: bool) -> str:
    held = [f"input {at} = {value_text(of)}" for at, of in enumerate(element.inputs) if of is not None]
    held += [
        f"input {r.input} [{r.at}] from {value_text(r.low)} to {value_text(r.high)}" for r in element.rows
    ]
    held.append(f"{'output' if is_output else 'value'} = {value_text(element.value)}")
    return f"at [{', '.join(map(str, element.index))}]: {', '.join(held)}"


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else value_text(value)


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


def _binary(reason: str, condition: Condition, result: str) -> Definition:
    return Definition(2, ((reason, condition),), result)


_DIVISION = Definition(
    2,
    (
        ("zero divided by zero", lambda x, y: (x == 0) & (y == 0)),
        ("division by zero", lambda x, y: (y == 0) & np.isfinite(x)),
        ("infinity divided by infinity", lambda x, y: np.isinf(x) & np.isinf(y)),
    ),
    "quotient",
)
_POWER = Definition(
    2,
    (
        ("negative power of zero", lambda x, y: (x == 0) & (y < 0)),
        ("power of a negative number that is not whole", lambda x, y: (x < 0) & (y != np.floor(y))),
    ),
    "power",
)
_INVERSE_ROOT = Definition(
    1,
    (
        ("square root of a negative number", lambda x: x < 0),
        ("division by zero: its root is zero", lambda x: x == 0),
    ),
)

#: By `plain_name`: of MindSpore and ACL (`RealDiv`), PyTorch (`true_divide`), ATen (`div`).
ELEMENTWISE: dict[str, Definition] = {
    **dict.fromkeys(
        ("log", "log2", "log10"), _unary("logarithm of a number that is not positive", lambda x: x <= 0)
    ),
    "log1p": _unary("logarithm of a number that is not positive", lambda x: x <= -1),
    "sqrt": _unary("square root of a negative number", lambda x: x < 0),
    **dict.fromkeys(("rsqrt", "invsqrt"), _INVERSE_ROOT),
    **dict.fromkeys(("reciprocal", "inv"), _unary("division by zero", lambda x: x == 0, "reciprocal")),
    **dict.fromkeys(
        ("div", "realdiv", "truediv", "truedivide", "divide", "floordiv", "floordivide", "divs", "xdivy"),
        _DIVISION,
    ),
    **dict.fromkeys(("mod", "floormod", "remainder", "fmod"), _unary("remainder of infinity", np.isinf)),
    **dict.fromkeys(
        ("mul", "multiply", "muls"),
        _binary(
            "zero times infinity",
            lambda x, y: ((x == 0) & np.isinf(y)) | (np.isinf(x) & (y == 0)),
            "product",
        ),
    ),
    **dict.fromkeys(
        ("add", "biasadd", "tensoradd", "adds", "iadd"),
        _binary("infinity minus infinity", _infinity_minus_infinity, "sum"),
    ),
    **dict.fromkeys(
        ("sub", "subtract", "subs", "isub"),
        _binary("infinity minus infinity", lambda x, y: _infinity_minus_infinity(x, -y), "difference"),
    ),
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
    "erfinv": _unary("inverse error function of a number not within 1", lambda x: np.abs(x) >= 1),
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


#: Elements of the output that are read at once.
_PIECE = 1 << 18
#: Elements of an input that are read at once: those from which the bad elements of a piece were computed.
_RANGE = 1 << 21
#: Elements of the output that are looked at; in a larger one, the rest is not.
_EXAMINED = 1 << 24
#: Tensors of which no range can be read, such as those in a device layout, are read whole up to this size.
_WHOLE_NBYTES = 64 * MIB
_ELEMENTS = 10


def explain(
    op_type: str, inputs: Sequence[Tensor], bad: Tensor, *, infinity: bool = False
) -> WhyAnswer | None:
    """Return why an operator produced NaN or Inf; None if the elements are not known.

    Args:
        op_type: its type.
        inputs: its inputs, in order; none for a tensor that was bad already, which has no reason of its own.
        bad: its output with NaN or Inf, or such a tensor.
        infinity: explain infinity alone; otherwise NaN, and infinity in a tensor without NaN.

    Raises:
        DamagedStore: the elements are damaged.
    """
    try:
        return _Reader(op_type, tuple(inputs), bad, infinity).why()
    except UsageError:
        return None  # they were removed


@dataclass
class _Reader:
    op_type: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    infinity: bool
    _counts: Counter[str] = field(default_factory=Counter)
    _elements: list[WhyElement] = field(default_factory=list)

    def why(self) -> WhyAnswer | None:
        size = math.prod(self.output.shape)
        if not size or not _is_readable(self.output):
            return None
        examined = min(size, _EXAMINED)
        for start in range(0, examined, _PIECE):
            piece = self.output.elements(start, min(start + _PIECE, examined))
            places = self._bad_places(piece)
            if len(places):
                self._add(places + start, piece[places].astype(np.float64), piece.dtype)
        if not self._elements:
            return None
        return WhyAnswer(
            self.output.name,
            tuple(tensor.name for tensor in self.inputs),
            tuple(WhyReason(reason, count) for reason, count in self._counts.most_common()),
            tuple(self._elements),
            self._counts.total(),
            examined,
            size,
        )

    def _bad_places(self, piece: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if self.infinity:
            return np.flatnonzero(np.isinf(piece))
        return np.flatnonzero(
            np.isnan(piece) if (self.output.statistics.nan_count > 0) else ~np.isfinite(piece)
        )

    def _add(self, places: npt.NDArray[np.int64], values: Numbers, dtype: np.dtype[Any]) -> None:
        operands = [self._operand(tensor, places) for tensor in self.inputs]
        reasons = self._reasons(places, values, operands, dtype)
        self._counts.update(reasons)
        for number in range(min(len(places), _ELEMENTS - len(self._elements))):
            index = np.unravel_index(int(places[number]), self.output.shape)
            self._elements.append(
                WhyElement(
                    tuple(map(int, index)),
                    float(values[number]),
                    tuple(None if operand is None else float(operand[number]) for operand in operands),
                    reasons[number],
                    tuple(self._rows(tuple(map(int, index)))),
                )
            )

    def _reasons(
        self,
        places: npt.NDArray[np.int64],
        values: Numbers,
        operands: Sequence[Numbers | None],
        dtype: np.dtype[Any],
    ) -> list[str]:
        name = plain_name(self.op_type)
        if name in SOFTMAX and self.inputs:
            return self._reasons_of_rows(places)
        if name in SUMS and self.inputs and np.isinf(values).all() and all(map(_is_finite, self.inputs)):
            return [beyond(SUMS[name], dtype)] * len(places)
        return reasons_of(ELEMENTWISE.get(name, Definition(0)), operands, values, dtype)

    def _reasons_of_rows(self, places: npt.NDArray[np.int64]) -> list[str]:
        source, unknown = self.inputs[0], [""] * len(places)
        length = self.output.shape[-1] if self.output.shape else 1
        rows = places // length
        first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
        if source.shape != self.output.shape or not _is_readable(source) or count * length > _RANGE:
            return unknown
        elements = source.elements(first * length, (first + count) * length).astype(np.float64)
        reasons = reasons_of_rows(elements.reshape(count, length))
        return [reasons[row - first] for row in rows.tolist()]

    def _rows(self, index: tuple[int, ...]) -> Iterator[WhyRow]:
        """Yield the row of each input whose trailing axes the output lacks, or has with length 1."""
        for number, tensor in enumerate(self.inputs):
            leading = _reduced_after(self.output.shape, tensor.shape)
            if leading is None or not _is_readable(tensor):
                continue
            length = math.prod(tensor.shape[leading:])
            if length > _RANGE:
                continue
            first = length * int(np.ravel_multi_index(index[:leading], tensor.shape[:leading]))
            elements = tensor.elements(first, first + length).astype(np.float64)
            finite = elements[np.isfinite(elements)]
            low, high = (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
            at = ", ".join([*map(str, index[:leading]), *":" * (len(tensor.shape) - leading)])
            yield WhyRow(number, at, low, high)

    def _operand(self, tensor: Tensor, places: npt.NDArray[np.int64]) -> Numbers | None:
        """Return the elements of an input at these places of the output; None if it is not computed so."""
        sources = _sources(places, self.output.shape, tensor.shape) if _is_readable(tensor) else None
        if sources is None:
            return None
        first, last = int(sources.min()), int(sources.max())
        if last - first >= _RANGE:
            return None
        return tensor.elements(first, last + 1)[sources - first].astype(np.float64)


def _sources(
    places: npt.NDArray[np.int64], output: tuple[int, ...], shape: tuple[int, ...]
) -> npt.NDArray[np.int64] | None:
    """Return the flat elements of an input from which these of the output are computed, by broadcasting."""
    if shape == output:
        return places
    if len(shape) > len(output) or 0 in shape:
        return None
    padded = (1,) * (len(output) - len(shape)) + shape
    if any(own not in (1, full) for own, full in zip(padded, output, strict=True)):
        return None
    index = zip(np.unravel_index(places, output), padded, strict=True)
    return (
        np.ravel_multi_index([np.minimum(along, own - 1) for along, own in index], padded)
        if padded
        else places
    )


def _reduced_after(output: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    """Return after how many axes an input is reduced to the output; None if it is not, or as a whole."""
    leading = max((axis for axis, length in enumerate(output, 1) if length != 1), default=0)
    is_reduced = (
        0 < leading < len(shape) and shape[:leading] == output[:leading] and len(output) <= len(shape)
    )
    return leading if is_reduced and math.prod(shape[leading:]) > 1 else None


def _is_readable(tensor: Tensor) -> bool:
    is_in_reach = tensor.is_dumped and (tensor.has_ranges or tensor.nbytes <= _WHOLE_NBYTES)
    return is_in_reach and is_real(from_name(tensor.dtype))


def _is_finite(tensor: Tensor) -> bool:
    statistics = tensor.statistics
    return statistics.nan_count == statistics.pos_inf_count == statistics.neg_inf_count == 0
