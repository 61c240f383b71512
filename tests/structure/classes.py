"""Measure the names of classes, and the state that classes keep for each step."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.structure.tree import Tree

_COLLECTIONS = {
    "Counter",
    "Mapping",
    "MutableMapping",
    "OrderedDict",
    "defaultdict",
    "dict",
    "frozenset",
    "set",
}


def keyed_by_step(tree: Tree) -> list[str]:
    """List the attributes in `ingest` that hold a value for each of many steps.

    An attribute counts if it is annotated, in the class body or where a method assigns it to `self`, as a
    dictionary, mapping or set whose key is `StepKey`. Fields of frozen dataclasses do not count, because they
    are values and not state. Of the 32 at revision 78bba84, 22 belong to the classes that watch, submit and
    retain steps; the others belong to readers, reports, consolidation and garbage collection.
    """
    return [
        f"{source.path}:{line} {name}"
        for source in tree.sources
        if source.path.parts[0] == "ingest"
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and not _is_frozen(node)
        for line, name in _keyed(node)
    ]


def keyed_by_step_count(tree: Tree) -> int:
    """Count the attributes in `ingest` that hold a value for each of many steps."""
    return len(keyed_by_step(tree))


def names_used_twice(tree: Tree) -> list[str]:
    """List the names that more than one class of both packages has, with the modules that define them."""
    modules = defaultdict(list)
    for source in tree.sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(source.module)
    return [f"{name}: {', '.join(where)}" for name, where in sorted(modules.items()) if len(where) > 1]


def names_used_twice_count(tree: Tree) -> int:
    """Count the names that more than one class has."""
    return len(names_used_twice(tree))


def _keyed(node: ast.ClassDef) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each instance attribute that is keyed by step."""
    for statement in node.body:
        is_method = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(statement) if is_method else [statement]:
            if isinstance(inner, ast.AnnAssign) and _is_keyed(inner.annotation):
                attribute = _attribute(inner.target, is_field=not is_method)
                if attribute:
                    yield inner.lineno, f"{node.name}.{attribute}: {ast.unparse(inner.annotation)}"


def _attribute(target: ast.expr, *, is_field: bool) -> str | None:
    """Return the name of the instance attribute that is assigned, or None for other targets."""
    if is_field:
        return target.id if isinstance(target, ast.Name) else None
    is_own = (
        isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    )
    return target.attr if is_own and isinstance(target, ast.Attribute) else None


def _is_keyed(annotation: ast.expr) -> bool:
    """Return whether an annotation is a collection keyed by step, such as `dict[StepKey, ...]`."""
    if not isinstance(annotation, ast.Subscript) or _last_name(annotation.value) not in _COLLECTIONS:
        return False
    inner = annotation.slice
    return _last_name(inner.elts[0] if isinstance(inner, ast.Tuple) and inner.elts else inner) == "StepKey"


def _is_frozen(node: ast.ClassDef) -> bool:
    """Return whether a class is a frozen dataclass."""
    return any(
        keyword.arg == "frozen" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and _last_name(decorator.func) == "dataclass"
        for keyword in decorator.keywords
    )


def _last_name(node: ast.expr) -> str:
    """Return `b` for `b` and for `a.b`, and an empty string for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
