"""The figures of `docs/design/009-the-house.md` keep their aims; `python -m tests.structure` prints them."""

import ast
import re
from pathlib import Path

import pytest

from tests.structure import classes, functions, layout, words
from tests.structure.tree import Tree

ROOT = Path(__file__).parents[2]
#: The only class names that may be used twice, and why.
SHARED_NAMES = {
    "_Version": "the same idea in both formats: the field of a record that is read before all others",
}
#: Collections by step besides the table, and why they are not state of a step.
BY_STEP = {
    "StepTable._states": "the table",
    "Catalog._steps": "what a reader has opened",
    "Consolidator._unreadable": "commits that the cubes do not have, from one round to the next",
    "DumpSource._listings": "what a comparison has opened",
    "Moment._tables": "what a view of the page has opened",
    "PinnedStore.known": "the commits of a moment, which do not change",
    "Report.failures": "the answer of a run",
    "Report.read_back_failures": "the answer of a run",
    "ShownSteps._nodes": "what a Zarr view has opened",
    "ShownSteps._opening": "what a Zarr view is opening",
    "ShownSteps._steps": "what a Zarr view has opened",
    "_Listing.generations": "an inventory of the store, which gc makes and drops",
    "_Listing.records": "an inventory of the store, which gc makes and drops",
}


@pytest.fixture(scope="module")
def tree() -> Tree:
    """Return the sources, which are parsed once for all of these tests."""
    return Tree(ROOT)


def test_no_function_is_very_complex(tree: Tree) -> None:
    assert [function for function in functions.measured(tree) if function.complexity > 20] == []


def test_few_functions_are_complex(tree: Tree) -> None:
    """Split one by idea: a helper that others share, a typed value, a table."""
    assert functions.complex_over_percent(tree, 10) <= 3.0, functions.worst(tree)


def test_no_module_is_very_long(tree: Tree) -> None:
    assert layout.modules_over(tree, 800) == 0


def test_negations_are_plain(tree: Tree) -> None:
    """Write "X is not a Y"."""
    assert words.negated(tree) + words.negated_in_pages(tree) < 10


def test_names_say_what_they_hold(tree: Tree) -> None:
    assert words.identifiers_named(tree, "one") + words.identifiers_named(tree, "found") < 100


def test_classes_of_different_meaning_have_different_names(tree: Tree) -> None:
    shared = {text.partition(":")[0] for text in classes.names_used_twice(tree)}
    assert shared <= SHARED_NAMES.keys()


def test_state_of_a_step_has_one_owner(tree: Tree) -> None:
    """Whatever else is kept by step is what somebody has read, or an answer."""
    kept = {re.split(r"[ :]", text)[2] for text in classes.keyed_by_step(tree)}
    assert kept == BY_STEP.keys()


def test_maps_of_packages_name_only_modules_that_exist(tree: Tree) -> None:
    """The docstring of a package is its map: whoever renames or removes a module changes it there, too."""
    wrong = [
        f"{source.module}: {name}"
        for source in tree.sources
        if source.is_init
        for name in re.findall(r"(?<![\w/`.*])[\w*]+\.py\b", ast.get_docstring(source.syntax) or "")
        if not any((ROOT / source.path).parent.glob(name))
    ]
    assert wrong == []
