"""Conditions such as `nan_count > 0 and op_type == "Log"`, evaluated over whole columns.

The grammar is a subset of Python expressions: column names, numbers, strings, comparisons, `and`, `or`,
`not`, `in`, arithmetic and `abs()`. Nothing else is evaluated, whatever the text says.

The values of a column may be known between two bounds only. Whatever the values between the bounds are, the
result of an operation on them is between the bounds of its result. Operations round to nearest, which keeps
the order of numbers, so this holds for rounded results, too. A result between -inf and inf is vague: it may
also be NaN, which fulfils only `!=`. Nothing that is compared with it is certain. NaN as both bounds is known
to be NaN.
"""

from __future__ import annotations

import ast
import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.arrays.statistics import SUMS
from workers.errors import UsageError

Mask: TypeAlias = npt.NDArray[np.bool_]
_Function: TypeAlias = Callable[..., Any]


class BoundedColumn(NamedTuple):
    """A column whose values are known to lie between two others; both are the same if they are known."""

    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


class Decided(NamedTuple):
    """Where a condition holds for all values between the bounds, and where it may: for some of them."""

    certain: Mask
    possible: Mask


def _lifted(plain: _Function, bounded: _Function | None = None) -> _Function:
    """Return `plain` for arguments that are known, and its bounded form if any is a column of bounds.

    Args:
        plain: a function of numbers, columns and conditions.
        bounded: its bounded form, if it is not one of `_OF_PLAIN`.
    """
    of_bounds = bounded or _OF_PLAIN[plain]

    def function(*values: Any) -> Any:
        return of_bounds(*values) if any(map(_is_bounded, values)) else plain(*values)

    return function


def _is_bounded(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_bounded, value))
    return isinstance(value, BoundedColumn | Decided)


def _bounds_of(value: Any) -> BoundedColumn:
    if isinstance(value, BoundedColumn):
        return value
    low, high = value if isinstance(value, Decided) else (value, value)
    return BoundedColumn(np.asarray(low, np.float64), np.asarray(high, np.float64))


def _decision_of(value: Any) -> Decided:
    if isinstance(value, Decided):
        return value
    if isinstance(value, BoundedColumn):
        return _not(_equal(value, _bounds_of(0.0)))
    known = np.asarray(value).astype(bool)
    return Decided(known, known)


def _sum_of(a: BoundedColumn, b: BoundedColumn) -> BoundedColumn:
    return _between((a, b), (a.low + b.low, a.high + b.high))


def _divide(a: BoundedColumn, b: BoundedColumn) -> BoundedColumn:
    """Return the bounds of a quotient, which is vague if the divisor may be zero, unless it certainly is."""
    bounds = _between((a, b), tuple(np.divide(x, y) for x in a for y in b))
    return _vague_where((b.low <= 0) & (b.high >= 0) & (b.low != b.high) & ~np.isnan(a.low), bounds)


def _negate(a: BoundedColumn) -> BoundedColumn:
    return BoundedColumn(-a.high, -a.low)


def _magnitude(a: BoundedColumn) -> BoundedColumn:
    """Return the bounds of a magnitude: the lower one is zero if the number may be."""
    low, high = np.abs(a.low), np.abs(a.high)
    least = np.where((a.low <= 0) & (a.high >= 0), 0.0, np.minimum(low, high))
    return BoundedColumn(np.where(_is_vague(a), -np.inf, least), np.maximum(low, high))


def _less(a: BoundedColumn, b: BoundedColumn) -> Decided:
    return _compared(a, b, a.high < b.low, a.low < b.high)


def _at_most(a: BoundedColumn, b: BoundedColumn) -> Decided:
    return _compared(a, b, a.high <= b.low, a.low <= b.high)


def _equal(a: BoundedColumn, b: BoundedColumn) -> Decided:
    certain = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _compared(a, b, certain, (a.low <= b.high) & (b.low <= a.high))


def among(left: Any, values: Any) -> Decided:
    """Return where a number is one of others: a list of numbers and columns."""
    nowhere, a = np.zeros(1, bool), _bounds_of(left)
    return reduce(_either, [_equal(a, _bounds_of(value)) for value in values], Decided(nowhere, nowhere))


def _either(a: Decided, b: Decided) -> Decided:
    return Decided(a.certain | b.certain, a.possible | b.possible)


def _not(a: Decided) -> Decided:
    return Decided(~a.possible, ~a.certain)


def _given(convert: _Function, function: _Function) -> _Function:
    return lambda *values: function(*map(convert, values))


#: The bounded form of each function that a condition applies to known numbers.
_OF_NUMBERS: dict[_Function, _Function] = {
    operator.add: _sum_of,
    operator.sub: lambda a, b: _sum_of(a, _negate(b)),
    operator.mul: lambda a, b: _between((a, b), tuple(x * y for x in a for y in b)),
    np.divide: _divide,
    operator.neg: _negate,
    operator.pos: lambda a: a,
    np.abs: _magnitude,
    operator.eq: _equal,
    operator.ne: lambda a, b: _not(_equal(a, b)),
    operator.lt: _less,
    operator.le: _at_most,
    operator.gt: lambda a, b: _less(b, a),
    operator.ge: lambda a, b: _at_most(b, a),
}
#: The same of those that it applies to conditions.
_OF_CONDITIONS: dict[_Function, _Function] = {
    np.logical_not: _not,
    np.logical_and: lambda a, b: Decided(a.certain & b.certain, a.possible & b.possible),
    np.logical_or: _either,
}
_OF_PLAIN: dict[_Function, _Function] = {
    **{plain: _given(_bounds_of, bounded) for plain, bounded in _OF_NUMBERS.items()},
    **{plain: _given(_decision_of, bounded) for plain, bounded in _OF_CONDITIONS.items()},
}


def _is_vague(bounds: BoundedColumn) -> Mask:
    return np.asarray((bounds.low == -np.inf) & (bounds.high == np.inf))


def _vague_where(vague: Any, bounds: BoundedColumn) -> BoundedColumn:
    return BoundedColumn(np.where(vague, -np.inf, bounds.low), np.where(vague, np.inf, bounds.high))


def _between(operands: tuple[BoundedColumn, ...], ends: tuple[Any, ...]) -> BoundedColumn:
    """Return the least and the greatest of results; vague where one is NaN though no operand is."""
    low, high = reduce(np.minimum, ends), reduce(np.maximum, ends)
    is_nan = reduce(np.logical_or, [np.isnan(bounds.low) | np.isnan(bounds.high) for bounds in operands])
    return _vague_where(np.isnan(low) & ~is_nan, BoundedColumn(low, high))


def _compared(a: BoundedColumn, b: BoundedColumn, certain: Any, possible: Any) -> Decided:
    vague = (_is_vague(a) | _is_vague(b)) & ~(np.isnan(a.low) | np.isnan(b.low))
    return Decided(np.asarray(certain & ~vague), np.asarray(possible | vague))


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: _lifted(operator.eq),
    ast.NotEq: _lifted(operator.ne),
    ast.Lt: _lifted(operator.lt),
    ast.LtE: _lifted(operator.le),
    ast.Gt: _lifted(operator.gt),
    ast.GtE: _lifted(operator.ge),
    ast.In: _lifted(np.isin, among),
    ast.NotIn: _lifted(
        lambda column, values: ~np.isin(column, values), lambda left, values: _not(among(left, values))
    ),
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: _lifted(operator.add),
    ast.Sub: _lifted(operator.sub),
    ast.Mult: _lifted(operator.mul),
    ast.Div: _lifted(np.divide),
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: _lifted(np.logical_not),
    ast.USub: _lifted(operator.neg),
    ast.UAdd: _lifted(operator.pos),
}
_add = _ARITHMETIC[ast.Add]
_abs, _and, _or = _lifted(np.abs), _lifted(np.logical_and), _lifted(np.logical_or)
#: Longer conditions are mistakes, and would take minutes to parse.
_MAX_LENGTH = 20_000
#: What other languages write, and what a condition has instead.
_FOREIGN = {"=": "==", "&&": "and", "||": "or", "<>": "!=", "!": "not"}
_IS_FOREIGN = re.compile(r"(?<![=<>!])=(?!=)|&&|\|\||<>|!(?!=)")
_WITH_UNIT = re.compile(r"(?<![\w.])\d[\d.]*[a-zA-Z]\w*")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'" r'|"(?:[^"\\]|\\.)*"', re.DOTALL)
#: The columns that a hint lists, of fifty.
_USUAL = (
    *("rank", "step", "name", "op_type", "io", "dtype", "nan_count", "pos_inf_count", "neg_inf_count"),
    *("zero_count", "min", "max", "mean", "std", "l2_norm"),
)
_EXAMPLE = "For example: nan_count > 0 and io == 'output'."
_NAMES = {"nan": np.nan, "inf": np.inf, "true": True, "false": False}


#: `p99.9`, which Python takes for a name and a number. A column is called `p99_9` then.
_PERCENTILE = re.compile(r"\b((?:abs_)?p\d{1,3})\.(\d+)\b")


_Value: TypeAlias = Callable[[Mapping[str, Any]], Any]


class Filter:
    """A parsed condition."""

    def __init__(self, text: str, columns: frozenset[str], *, said_by: str = "where") -> None:
        """Parse a condition.

        Args:
            text: the condition.
            columns: the names that it may use.
            said_by: where the user wrote it, for error messages.

        Raises:
            UsageError: the text is not a condition, or uses an unknown column.
        """
        self._text = text
        self._columns = columns
        self._sums = {name: parts for name, parts in SUMS.items() if all(part in columns for part in parts)}
        """Columns that are sums of others."""
        self._source = said_by
        self.names: set[str] = set()
        if len(text) > _MAX_LENGTH:
            self._text = f"{text[:60]}..."
            raise self._error(f"has {len(text)} characters, which is more than {_MAX_LENGTH}")
        try:
            parsed = ast.parse(_with_names_of_percentiles(text.strip()), mode="eval")
            self._condition = self._compile(parsed.body)
        except SyntaxError as exc:
            raise self._error(f"is not a condition: {_where_wrong(text.strip(), exc)}") from exc
        except (ValueError, MemoryError, RecursionError) as exc:
            raise self._error("is not a condition") from exc

    def mask(self, columns: Mapping[str, Any], rows: int) -> npt.NDArray[np.bool_]:
        """Return for each row whether the condition holds. NaN fulfils only the comparison `!=`."""
        return np.broadcast_to(self.evaluate(columns), (rows,))

    def evaluate(self, columns: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
        """Return whether the condition holds, in the shape to which the columns broadcast.

        It holds for bounded columns if it does for all values between their bounds.
        """
        return self.decide(columns).certain

    def decide(self, columns: Mapping[str, Any]) -> Decided:
        """Return where the condition holds, and where it may; the same unless it asks for bounded columns.

        It certainly holds for all values between the bounds where it is said to, and for none where it is
        not possible. A column that it names twice is taken for two, each with any value between its bounds.
        """
        with np.errstate(all="ignore"):
            try:
                decided = self._condition(columns)
            except (TypeError, ValueError, OverflowError) as exc:
                raise self._error(f"cannot be evaluated: {exc}") from exc
        if isinstance(decided, Decided):
            return decided
        mask = np.asarray(decided)
        if isinstance(decided, BoundedColumn) or mask.dtype != bool:
            raise self._error("is a value, not a condition")
        return Decided(mask, mask)

    def _compile(self, node: ast.AST) -> _Value:
        match node:
            case ast.Name(id=name):
                return self._compile_name(node, name)
            case ast.Constant(value=int() | float() | str() as value):
                return lambda _: value
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                values = [self._compile(part) for part in parts]
                return lambda columns: [value(columns) for value in values]
        return self._compile_operation(node)

    def _compile_operation(self, node: ast.AST) -> _Value:
        match node:
            case ast.BoolOp(op=op, values=parts):
                join = _and if isinstance(op, ast.And) else _or
                terms = [self._compile(part) for part in parts]
                return lambda columns: reduce(join, [term(columns) for term in terms])
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return _apply(_UNARY[type(op)], node, self._compile(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                function = _of_numbers(_ARITHMETIC[type(op)])
                return _apply(function, node, self._compile(left), self._compile(right))
            case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
                return _apply(_abs, node, self._compile(argument))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in _COMPARISONS for op in ops
            ):
                return self._compile_comparison([left, *others], ops)
        raise self._error(f"holds {ast.unparse(node)!r}{_at(node)}, which a condition may not contain")

    def _compile_name(self, node: ast.AST, name: str) -> _Value:
        if name in self._columns:
            self.names.add(name)
            return lambda columns: columns[name]
        if name in self._sums:
            parts = self._sums[name]
            self.names.update(parts)
            return lambda columns: reduce(_add, [columns[part] for part in parts])
        if name.lower() in _NAMES:
            return lambda _: _NAMES[name.lower()]
        raise self._error(f"names {name!r}{_at(node)}, which is not a column", self._columns_like(name))

    def _columns_like(self, name: str) -> str:
        """Return the columns that may be meant, or else the usual ones."""
        near = difflib.get_close_matches(name.lower(), sorted({*self._columns, *self._sums}), n=3, cutoff=0.6)
        if near:
            return f"Did you mean {' or '.join(near)}?"
        usual = [column for column in _USUAL if column in self._columns]
        more = ", and the others of the index" if len(usual) < len(self._columns) else ""
        return f"{_EXAMPLE} Columns: {', '.join(usual)}{more}. Text is quoted."

    def _refuse_bare_text(self, parts: Sequence[ast.expr], comparison: str) -> None:
        """Refuse `op_type == Sqrt`: a name that is not a column, compared with a column."""
        columns = [part.id for part in parts if isinstance(part, ast.Name) and part.id in self._columns]
        for part in parts:
            if isinstance(part, ast.Name) and columns and not self._is_known(part.id):
                hint = f"Quote it if it is text: {columns[0]} {comparison} '{part.id}'."
                like = self._columns_like(part.id)
                if like.startswith("Did"):
                    hint = f"{like} {hint}"
                raise self._error(f"names {part.id!r}{_at(part)}, which is not a column", hint)

    def _is_known(self, name: str) -> bool:
        return name in self._columns or name in self._sums or name.lower() in _NAMES

    def _refuse_nan(self, parts: Sequence[ast.expr]) -> None:
        for part in parts:
            if isinstance(part, ast.Name) and part.id.lower() == "nan":
                raise self._error(
                    f"compares with nan{_at(part)}, which no number equals",
                    "Use nan_count > 0 for tensors with NaN.",
                )

    def _compile_comparison(self, parts: list[ast.expr], ops: list[ast.cmpop]) -> _Value:
        if isinstance(ops[0], ast.Eq | ast.NotEq):
            self._refuse_bare_text(parts, "==" if isinstance(ops[0], ast.Eq) else "!=")
        self._refuse_nan(parts)
        values = [self._compile(part) for part in parts]
        nodes = [
            ast.copy_location(ast.Compare(left, [op], [right]), left)
            for op, left, right in zip(ops, parts, parts[1:], strict=False)
        ]
        pairs = [
            _apply(_COMPARISONS[type(op)], node, left, right)
            for op, node, left, right in zip(ops, nodes, values, values[1:], strict=False)
        ]
        return lambda columns: reduce(_and, [pair(columns) for pair in pairs])

    def _error(self, reason: str, hint: str = _EXAMPLE) -> UsageError:
        return UsageError(f"{self._source} {self._text!r} {reason}".lstrip(), hint=hint)


def _apply(function: Callable[..., Any], node: ast.AST, *arguments: _Value) -> _Value:
    """Return a function of the columns that applies another one; `node` is what the user wrote of it."""

    def applied(columns: Mapping[str, Any]) -> Any:
        values = [argument(columns) for argument in arguments]
        try:
            return function(*values)
        except _OnlyNumbersError as exc:
            raise TypeError(f"{ast.unparse(node)!r}{_at(node)}: {exc}") from exc
        except TypeError as exc:  # numpy names its own function, which tells the user nothing
            raise TypeError(f"{ast.unparse(node)!r}{_at(node)} takes text for a number") from exc

    return applied


class _OnlyNumbersError(TypeError):
    """Arithmetic with text or lists."""


def _at(node: ast.AST) -> str:
    begin = getattr(node, "col_offset", 0)
    return f" at character {begin + 1}" if begin else ""


def _of_numbers(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function that refuses text and lists: Python would repeat them as often as a number says."""

    def checked(left: Any, right: Any) -> Any:
        for value in (left, right):
            if np.asarray(value).dtype.kind not in "biuf" or isinstance(value, list):
                raise _OnlyNumbersError("only numbers can be added, subtracted, multiplied and divided")
        return function(left, right)

    return checked


def _with_names_of_percentiles(text: str) -> str:
    """Return a condition with `p99_9` for `p99.9`, but not in quoted text; places in it stay the same."""
    parts = _TEXT.split(text)
    quoted = [*_TEXT.findall(text), ""]
    return "".join(_PERCENTILE.sub(r"\1_\2", part) + text for part, text in zip(parts, quoted, strict=True))


def _where_wrong(text: str, exc: SyntaxError) -> str:
    """Return where a text stops being a condition, and what is probably meant."""
    # As long as the text, so that places in it are places in the text.
    without_texts = _TEXT.sub(lambda match: " " * len(match[0]), text)
    if foreign := _IS_FOREIGN.search(without_texts):
        return f"character {foreign.start() + 1} is {foreign[0]!r}; use {_FOREIGN[foreign[0]]!r}"
    # Python places an error after the end of the text at its begin.
    begin = (exc.offset or len(text) + 1) - 1
    if (exc.lineno or 1) > 1 or begin >= len(text):
        return f"something is missing after {text!r}" if text else "it is empty"
    for number in _WITH_UNIT.finditer(without_texts):
        if number.start() <= begin < number.end():
            return f"{number[0]!r} at character {number.start() + 1} is not a number; numbers have no unit"
    return f"{exc.msg} at character {begin + 1}, {text[begin:][:20]!r}"
