"""Measure the number, length and place of modules, and how they depend on one another."""

from __future__ import annotations

from collections import Counter

from tests.structure.graph import circles, floors, room_graph
from tests.structure.scan import PACKAGES
from tests.structure.statements import Place, import_statements
from tests.structure.tree import Source, Tree


def modules(tree: Tree) -> int:
    """Count the modules of both packages, including each `__init__` but not generated code."""
    return len(tree.sources)


def lines(tree: Tree) -> int:
    """Count the lines of these modules, including blank lines and comments."""
    return sum(_length(source) for source in tree.sources)


def modules_over(tree: Tree, limit: int) -> int:
    """Count the modules with more lines than the limit."""
    return sum(_length(source) > limit for source in tree.sources)


def loose_modules(tree: Tree) -> dict[str, int]:
    """Count for each top-level package the modules that lie directly in it, except its `__init__`."""
    parents = Counter(str(source.path.parent) for source in tree.sources if not source.is_init)
    return {package: parents[package] for package in PACKAGES}


def rooms(tree: Tree) -> int:
    """Count the rooms: folders directly below a top-level package, and loose modules.

    At revision 78bba84 there are 10 folders and 55 loose modules. An earlier review of that revision gives 38
    rooms on 16 floors, with 171 arrows for 703 imports. It groups modules differently, so do not compare its
    figures with those of this program.
    """
    return len(room_graph(tree.graph))


def arrows(tree: Tree) -> int:
    """Count the ordered pairs of different rooms in which the first imports from the second."""
    return sum(map(len, room_graph(tree.graph).values()))


def floors_of_rooms(tree: Tree) -> int:
    """Return the length of the longest chain of rooms in which each imports from the next.

    A circle of rooms counts as one.
    """
    return floors(room_graph(tree.graph))


def edges(tree: Tree) -> int:
    """Count the ordered pairs of modules in which the first imports the second, wherever in its code."""
    return sum(map(len, tree.graph.values()))


def edges_at_import(tree: Tree) -> int:
    """Count the pairs in which the first imports the second while it is itself imported."""
    return sum(map(len, tree.graph_at_import.values()))


def circles_of_modules(tree: Tree) -> list[int]:
    """Return the sizes of the circles: sets of modules that all import one another, directly or indirectly.

    Imports inside functions and under `TYPE_CHECKING` count.
    """
    return [len(circle) for circle in circles(tree.graph)]


def circles_at_import(tree: Tree) -> list[int]:
    """Return the sizes of the circles that remain if only imports that run at import time count."""
    return [len(circle) for circle in circles(tree.graph_at_import)]


def circles_of_rooms(tree: Tree) -> list[int]:
    """Return the sizes of the circles between rooms."""
    return [len(circle) for circle in circles(room_graph(tree.graph))]


def members_of_circles(tree: Tree) -> list[str]:
    """List the modules of each circle."""
    return [", ".join(sorted(circle)) for circle in circles(tree.graph)]


def members_of_circles_of_rooms(tree: Tree) -> list[str]:
    """List the rooms of each circle."""
    return [", ".join(sorted(circle)) for circle in circles(room_graph(tree.graph))]


def imports_at(tree: Tree, place: Place, *, internal: bool = False) -> int:
    """Count the import statements at a place, or only those that import from the project itself."""
    statements = [statement for source in tree.sources for statement in import_statements(source.syntax)]
    return sum(
        statement.place is place and (statement.is_internal or not internal) for statement in statements
    )


def _length(source: Source) -> int:
    return len(source.text.splitlines())
