"""Build the graph of imports between modules, and between the rooms that contain them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TypeAlias

from tests.structure import scan
from tests.structure.statements import Place, import_statements

Graph: TypeAlias = dict[str, set[str]]


def import_graph(root: Path, *, at_import: bool = False) -> Graph:
    """Return the modules of the project that each of its modules imports.

    Imports inside functions and under `TYPE_CHECKING` count too; with `at_import`, only those count that run
    while the module itself is imported. Importing a submodule is an edge to the submodule and not to its
    package, so an `__init__` that re-exports its submodules does not form a circle with them.
    """
    command = [sys.executable, "-I", scan.__file__, str(root)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    imports: dict[str, list[tuple[str, int]]] = json.loads(done.stdout)
    graph = {}
    for importer, imported in imports.items():
        skipped = _deferred_lines(root, importer) if at_import else set()
        graph[importer] = {module for module, line in imported if line not in skipped}
    return graph


def components(graph: Graph) -> list[frozenset[str]]:
    """Return the strongly connected components: sets of nodes that all reach one another, largest first."""
    reached = {node: _reachable(graph, node) for node in graph}
    sets = {
        frozenset({node, *(other for other in reached[node] if node in reached[other])}) for node in graph
    }
    return sorted(sets, key=lambda component: (-len(component), min(component)))


def circles(graph: Graph) -> list[frozenset[str]]:
    """Return the strongly connected components of more than one node, largest first."""
    return [component for component in components(graph) if len(component) > 1]


def floors(graph: Graph) -> int:
    """Return the length of the longest chain in which each node imports the next.

    A circle counts as one node.
    """
    home = {node: component for component in components(graph) for node in component}
    below = {
        component: {home[other] for node in component for other in graph[node]} - {component}
        for component in home.values()
    }
    height: dict[frozenset[str], int] = {}
    for component in TopologicalSorter(below).static_order():
        height[component] = 1 + max((height[lower] for lower in below[component]), default=0)
    return max(height.values(), default=0)


def room_of(module: str) -> str | None:
    """Return the room of a module: the folder directly below its top-level package that contains it.

    A loose module, directly in the top-level package, is a room of its own. The `__init__` of a top-level
    package does not belong to a room (None), because what it re-exports is for users of the project.
    """
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 else None


def room_graph(graph: Graph) -> Graph:
    """Return for each room the other rooms from which its modules import."""
    rooms: Graph = {}
    for importer, imported in graph.items():
        room = room_of(importer)
        if room is not None:
            others = {room_of(module) for module in imported} - {None, room}
            rooms.setdefault(room, set()).update(other for other in others if other is not None)
    return rooms


def _reachable(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached


def _deferred_lines(root: Path, module: str) -> set[int]:
    """Return the lines of the import statements that do not run when the module is imported."""
    path = root / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    statements = import_statements(ast.parse(source.read_text(encoding="utf-8")))
    return {statement.line for statement in statements if statement.place is not Place.MODULE}
