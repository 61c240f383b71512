"""Conditions such as `nan_count > 0 and op_type == "Log"`, evaluated over whole columns.

The grammar is that of Python expressions, cut down to column names, numbers, strings, comparisons, `and`,
`or`, `not`, `in`, arithmetic and `abs()`. Nothing else is evaluated, whatever the text says.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

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
    ast.In: lambda column, values: np.isin(column, values),
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
_NAMES = {"nan": np.nan, "inf": np.inf, "true": True, "false": False}


class Where:
    """A parsed condition."""

    def __init__(self, text: str, columns: frozenset[str]) -> None:
        """Parse `text`, which may name these `columns`.

        Raises:
            UsageError: it is no condition, or names an unknown column.
        """
        self._text = text
        self._columns = columns
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as exc:
            raise self._error("is no condition") from exc
        self._check(self._tree)

    def mask(self, columns: Mapping[str, Any], rows: int) -> npt.NDArray[np.bool_]:
        """Return for each row whether the condition holds; NaN fulfils no comparison but `!=`."""
        with np.errstate(all="ignore"):
            try:
                result = self._evaluate(self._tree, columns)
            except (TypeError, ValueError) as exc:
                raise self._error(f"cannot be evaluated ({exc})") from exc
        mask = np.asarray(result)
        if mask.dtype != bool:
            raise self._error("is a value, not a condition")
        return np.broadcast_to(mask, (rows,))

    def _check(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name):
                if name not in self._columns and name.lower() not in _NAMES:
                    raise self._error(f"names {name!r}, which is no column")
            case ast.Constant(value=value):
                if not isinstance(value, int | float | str):
                    raise self._error(f"holds {value!r}, which is no number or text")
            case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
                for part in parts:
                    self._check(part)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                self._check(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                self._check(left)
                self._check(right)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(o) in _COMPARISONS for o in ops):
                for part in (left, *others):
                    self._check(part)
            case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
                self._check(argument)
            case _:
                raise self._error(f"holds {ast.unparse(node)!r}, which a condition may not")

    def _evaluate(self, node: ast.AST, columns: Mapping[str, Any]) -> Any:
        match node:
            case ast.Name(id=name):
                return columns[name] if name in columns else _NAMES[name.lower()]
            case ast.Constant(value=value):
                return value
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self._evaluate(part, columns) for part in parts]
            case ast.BoolOp(op=op, values=parts):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                result = self._evaluate(parts[0], columns)
                for part in parts[1:]:
                    result = join(result, self._evaluate(part, columns))
                return result
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self._evaluate(operand, columns))
            case ast.BinOp(left=left, op=op, right=right):
                return _ARITHMETIC[type(op)](self._evaluate(left, columns), self._evaluate(right, columns))
            case ast.Call(args=[argument]):
                return np.abs(self._evaluate(argument, columns))
            case ast.Compare(left=left, ops=ops, comparators=others):
                result: Any = True
                before = self._evaluate(left, columns)
                for op, other in zip(ops, others, strict=True):
                    after = self._evaluate(other, columns)
                    result = np.logical_and(result, _COMPARISONS[type(op)](before, after))
                    before = after
                return result
        raise self._error("cannot be evaluated")

    def _error(self, reason: str) -> UsageError:
        return UsageError(
            f"--where {self._text!r} {reason}",
            hint="For example: nan_count > 0 and io == 'output'. Columns: " + ", ".join(sorted(self._columns)),
        )
