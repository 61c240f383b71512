"""Conditions such as `nan_count > 0 and op_type == "Log"`, evaluated over whole columns.

The grammar is a subset of Python expressions: column names, numbers, strings, comparisons, `and`, `or`,
`not`, `in`, arithmetic and `abs()`. Nothing else is evaluated, whatever the text says.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from workers.errors import UsageError

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: np.isin,
    ast.NotIn: lambda column, values: ~np.isin(column, values),
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: np.divide,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: np.logical_not,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
#: Longer conditions are mistakes, and would take minutes to parse.
_MAX_LENGTH = 20_000
_NAMES = {"nan": np.nan, "inf": np.inf, "true": True, "false": False}


_Value: TypeAlias = Callable[[Mapping[str, Any]], Any]


class Filter:
    """A parsed condition."""

    def __init__(self, text: str, columns: frozenset[str], *, said_by: str = "--where") -> None:
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
        self._source = said_by
        self.names: set[str] = set()
        """The columns that it uses."""
        if len(text) > _MAX_LENGTH:
            self._text = f"{text[:60]}..."
            raise self._error(f"has {len(text)} characters, which is more than {_MAX_LENGTH}")
        try:
            self._condition = self._compile(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, MemoryError, RecursionError) as exc:
            raise self._error("is not a condition") from exc

    def mask(self, columns: Mapping[str, Any], rows: int) -> npt.NDArray[np.bool_]:
        """Return for each row whether the condition holds. NaN fulfils only the comparison `!=`."""
        return np.broadcast_to(self.evaluate(columns), (rows,))

    def evaluate(self, columns: Mapping[str, Any]) -> npt.NDArray[np.bool_]:
        """Return whether the condition holds, in the shape to which the columns broadcast."""
        with np.errstate(all="ignore"):
            try:
                mask = np.asarray(self._condition(columns))
            except (TypeError, ValueError, OverflowError) as exc:
                raise self._error(f"cannot be evaluated ({exc})") from exc
        if mask.dtype != bool:
            raise self._error("is a value, not a condition")
        return mask

    def _compile(self, node: ast.AST) -> _Value:  # noqa: PLR0911  (one return for each kind of node)
        """Return a function of the columns for a node that a condition may contain; refuse all others."""
        match node:
            case ast.Name(id=name):
                return self._compile_name(name)
            case ast.Constant(value=int() | float() | str() as value):
                return lambda _: value
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                values = [self._compile(part) for part in parts]
                return lambda columns: [value(columns) for value in values]
            case ast.BoolOp(op=op, values=parts):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                terms = [self._compile(part) for part in parts]
                return lambda columns: reduce(join, [term(columns) for term in terms])
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return _apply(_UNARY[type(op)], self._compile(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _apply(_of_numbers(_ARITHMETIC[type(op)]), self._compile(left), self._compile(right))
            case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
                return _apply(np.abs, self._compile(argument))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in _COMPARISONS for op in ops
            ):
                return self._compile_comparison([left, *others], ops)
        raise self._error(f"holds {ast.unparse(node)!r}, which a condition may not contain")

    def _compile_name(self, name: str) -> _Value:
        if name in self._columns:
            self.names.add(name)
            return lambda columns: columns[name]
        if name.lower() in _NAMES:
            return lambda _: _NAMES[name.lower()]
        raise self._error(f"names {name!r}, which is not a column")

    def _compile_comparison(self, parts: list[ast.expr], ops: list[ast.cmpop]) -> _Value:
        values = [self._compile(part) for part in parts]
        pairs = [
            _apply(_COMPARISONS[type(op)], left, right)
            for op, left, right in zip(ops, values, values[1:], strict=False)
        ]
        return lambda columns: reduce(np.logical_and, [pair(columns) for pair in pairs])

    def _error(self, reason: str) -> UsageError:
        return UsageError(
            f"{self._source} {self._text!r} {reason}",
            hint="For example: nan_count > 0 and io == 'output'. Columns: "
            + ", ".join(sorted(self._columns)),
        )


def _of_numbers(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function that refuses text and lists: Python would repeat them as often as a number says."""

    def checked(left: Any, right: Any) -> Any:
        for value in (left, right):
            if np.asarray(value).dtype.kind not in "biuf" or isinstance(value, list):
                raise TypeError("only numbers can be added, subtracted, multiplied and divided")
        return function(left, right)

    return checked


def _apply(function: Callable[..., Any], *arguments: _Value) -> _Value:
    return lambda columns: function(*(argument(columns) for argument in arguments))
