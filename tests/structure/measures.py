"""All figures by name, in the order of the table. The docstring of each function defines its figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tests.structure import classes, functions, layout, words
from tests.structure.statements import Place
from tests.structure.tree import Tree

#: A number, sizes of several things, or a number by name.
Figure: TypeAlias = int | float | list[int] | dict[str, int]

FIGURES: Mapping[str, Callable[[Tree], Figure]] = {
    "modules": layout.modules,
    "lines": layout.lines,
    "modules over 400 lines": partial(layout.modules_over, limit=400),
    "modules over 600 lines": partial(layout.modules_over, limit=600),
    "loose modules": layout.loose_modules,
    "rooms (folders, and loose modules)": layout.rooms,
    "arrows between rooms": layout.arrows,
    "floors of rooms": layout.floors_of_rooms,
    "import edges between modules": layout.edges,
    "import edges at import": layout.edges_at_import,
    "circles of modules, and their sizes": layout.circles_of_modules,
    "circles of modules at import": layout.circles_at_import,
    "circles of rooms, and their sizes": layout.circles_of_rooms,
    "imports inside functions": partial(layout.imports_at, place=Place.FUNCTION),
    "imports inside functions, of the project": partial(
        layout.imports_at, place=Place.FUNCTION, internal=True
    ),
    "imports under TYPE_CHECKING": partial(layout.imports_at, place=Place.TYPE_CHECKING),
    "imports under TYPE_CHECKING, of the project": partial(
        layout.imports_at, place=Place.TYPE_CHECKING, internal=True
    ),
    "functions": functions.functions,
    "functions of complexity over 10": partial(functions.complex_over, limit=10),
    "functions of complexity over 10, %": partial(functions.complex_over_percent, limit=10),
    "functions of complexity over 20": partial(functions.complex_over, limit=20),
    "identifiers": words.identifiers_in_all,
    "identifiers `one`": partial(words.identifiers_named, name="one"),
    "identifiers `found`": partial(words.identifiers_named, name="found"),
    '"is no", "are no" in code': words.negated,
    'of these, "there is no", "there are no"': words.negated_there,
    '"is no", "are no" in pages': words.negated_in_pages,
    "collections keyed by step": classes.keyed_by_step_count,
    "class names used twice": classes.names_used_twice_count,
}

LISTS: Mapping[str, Callable[[Tree], list[str]]] = {
    "Circles of modules": layout.members_of_circles,
    "Circles of rooms": layout.members_of_circles_of_rooms,
    "Most complex functions": functions.worst,
    "Collections keyed by step": classes.keyed_by_step,
    "Class names used twice": classes.names_used_twice,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """All figures of one tree, and the lists behind some of them."""

    figures: dict[str, Figure]
    lists: dict[str, list[str]]


def measure(root: Path) -> Measured:
    """Measure the tree at a root: a directory with the packages, and with tests and pages next to them."""
    tree = Tree(root)
    return Measured(
        figures={name: figure(tree) for name, figure in FIGURES.items()},
        lists={name: members(tree) for name, members in LISTS.items()},
    )
