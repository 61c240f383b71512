"""The code keeps its shape; `python -m tests.house` prints the figures."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.house import ROOT, Sources

#: The only class names that may be used twice: the field of a record that is read before all others.
SHARED_NAMES = {"_Version"}


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources.below(ROOT, "ingest", "workers")


def test_few_functions_are_complex(sources: Sources) -> None:
    """Split one by idea: a helper that others share, a typed value, a table."""
    worst = sorted(sources.complexities(), reverse=True)
    assert worst[0][0] <= 20, worst[:10]
    assert sum(complexity > 10 for complexity, _ in worst) <= 0.035 * len(worst), worst[:10]


def test_no_module_is_very_long() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in _modules()}
    assert [path for path, length in lengths.items() if length > 800 and "_pb2" not in path.name] == []


def test_classes_of_different_meaning_have_different_names(sources: Sources) -> None:
    names = Counter(node.name for node in sources.classes)
    assert {name for name, count in names.items() if count > 1} <= SHARED_NAMES


def test_negations_are_plain() -> None:
    """Write "X is not a Y"."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *_modules()]
    assert sum(len(re.findall(r"\b(?:is|are)\s+no\s", path.read_text("utf-8"))) for path in pages) < 10


def test_maps_of_packages_name_only_modules_that_exist(sources: Sources) -> None:
    """The docstring of a package is its map: whoever renames or removes a module changes it there, too."""
    wrong = [
        f"{path}: {name}"
        for path, tree in sources.trees.items()
        if path.name == "__init__.py"
        for name in re.findall(r"(?<![\w/`.*])[\w*]+\.py\b", ast.get_docstring(tree) or "")
        if not any((ROOT / path).parent.glob(name))
    ]
    assert wrong == []


def _modules() -> list[Path]:
    return [path for package in ("ingest", "workers") for path in (ROOT / package).rglob("*.py")]
