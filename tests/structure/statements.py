"""Find the import statements of a module, and when they run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from tests.structure.scan import PACKAGES


class Place(Enum):
    """When an import statement runs."""

    MODULE = "with the module"
    FUNCTION = "when a function is called"
    TYPE_CHECKING = "never: only type checkers read it"


@dataclass(frozen=True, slots=True)
class ImportStatement:
    """One `import` or `from ... import`, whatever the number of names it imports."""

    line: int
    place: Place
    is_internal: bool
    """Whether it imports from the project itself."""


def import_statements(syntax: ast.Module) -> list[ImportStatement]:
    """Return all import statements of a module, including nested ones."""
    return list(_below(syntax.body, Place.MODULE))


def _below(nodes: Iterable[ast.AST], place: Place) -> Iterator[ImportStatement]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield ImportStatement(node.lineno, place, _is_internal(node))
        elif isinstance(node, ast.If) and _asks_for_type_checking(node.test):
            yield from _below(node.body, Place.TYPE_CHECKING)
            yield from _below(node.orelse, place)
        else:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _below(ast.iter_child_nodes(node), Place.FUNCTION if is_function else place)


def _is_internal(node: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.ImportFrom) and node.level:
        return True
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return any(name.partition(".")[0] in PACKAGES for name in names)


def _asks_for_type_checking(test: ast.expr) -> bool:
    """Return whether a condition is `TYPE_CHECKING` or `typing.TYPE_CHECKING`."""
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"
