"""Measure the complexity of functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from radon.complexity import add_inner_blocks, cc_visit_ast
from radon.visitors import Function

from tests.structure.tree import Tree

#: The number of functions in the list of the most complex ones.
_LISTED = 10


@dataclass(frozen=True, slots=True)
class MeasuredFunction:
    """One function or method, which may be nested in another one."""

    complexity: int
    """Cyclomatic complexity as radon counts it.

    That is 1, plus 1 for each branch, loop, `and`, `or`, `assert`, comprehension and `if` of a comprehension.
    A function inside another has its own complexity, which is not added to that of the outer function.
    """
    place: str
    name: str


@cache
def measured(tree: Tree) -> tuple[MeasuredFunction, ...]:
    """Return all functions and methods, including nested ones, the most complex first."""
    functions = [
        MeasuredFunction(block.complexity, f"{source.path}:{block.lineno}", block.fullname)
        for source in tree.sources
        for block in add_inner_blocks(cc_visit_ast(source.syntax))
        if isinstance(block, Function)
    ]
    return tuple(sorted(functions, key=lambda function: (-function.complexity, function.place)))


def functions(tree: Tree) -> int:
    """Count functions and methods, including nested ones."""
    return len(measured(tree))


def complex_over(tree: Tree, limit: int) -> int:
    """Count the functions whose cyclomatic complexity exceeds the limit."""
    return sum(function.complexity > limit for function in measured(tree))


def complex_over_percent(tree: Tree, limit: int) -> float:
    """Return the percentage of functions whose cyclomatic complexity exceeds the limit."""
    return round(100 * complex_over(tree, limit) / max(1, functions(tree)), 1)


def worst(tree: Tree) -> list[str]:
    """List the ten functions with the highest cyclomatic complexity."""
    return [
        f"{function.complexity} {function.place} {function.name}" for function in measured(tree)[:_LISTED]
    ]
