"""The tests of a module are found by its path."""

from pathlib import Path

import pytest

from tests.structure import layout
from tests.structure.tree import Tree

ROOT = Path(__file__).parents[2]
TYPES = "types alone: it does nothing that a test could show"
RUNS = "shown on whole runs with planted mistakes: "
#: The modules without a test file of their own, and where what they do is tested, or why it is not.
EXCUSED = {
    "ingest/dispatch/clients.py": "asks real workers: test_task_monitor.py and test_process_client.py",
    "ingest/dispatch/outcomes.py": TYPES,
    "ingest/doctor/check.py": TYPES,
    "ingest/dump_retention/events.py": TYPES,
    "ingest/findings/incidents/sightings.py": f"{RUNS}test_find.py",
    "ingest/questions/compare/layout_comparison.py": f"{RUNS}test_layout_run.py",
    "ingest/questions/compare/layout_judge.py": f"{RUNS}test_layout_run.py",
    "ingest/recording/sink.py": TYPES,
    "ingest/repairing/payloads.py": f"{RUNS}test_run.py",
    "ingest/repairing/step.py": f"{RUNS}test_run.py",
    "workers/arrays/compiled/kernel_entries.py": "test_kernel_objects.py compares what it compiles",
    "workers/arrays/compiled/marginal_kernels.py": "test_marginals.py compares what they return with numpy",
    "workers/store/sketches/step_sketches.py": TYPES,
    "workers/processes/serve.py": "runs in another process: test_start.py starts it, and asks it",
}


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT)


def test_every_module_has_its_tests_by_its_path_or_an_excuse(tree: Tree) -> None:
    """A new module comes with `tests/unit/.../test_NAME.py`; an excuse goes when there is one."""
    assert set(layout.unmirrored(tree)) == EXCUSED.keys()


def test_excuses_are_few(tree: Tree) -> None:
    assert layout.mirrored_percent(tree) >= 95


def test_every_file_of_tests_has_some() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    empty = [
        str(path.relative_to(ROOT))
        for path in files
        if not any(words in path.read_text("utf-8") for words in ("def test_", "TestCase", "class Test"))
    ]
    assert empty == []
