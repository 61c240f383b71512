"""`dump-ingest trampled`: which tensor, what differs, and what ran in between."""

from pathlib import Path

from tests.cli import Answer
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly


def test_a_trampled_tensor_is_named_with_what_ran_in_between(
    made: MadeDump, store: Path, nan_store: Path, answer: Answer
) -> None:
    run = MadeRun(made)
    run.op("C.watched", [numbers(3)], [numbers(1, 2)])
    run.op("B.second", (), [numbers(9, 2)])
    run.op("C.watched", (), [numbers(5, 2)])
    ingest_directly(made.root, store)
    lines = answer("trampled", store, code=5).stdout.splitlines()
    assert lines[0] == "rank 0, step 0: C.watched.output.0 is trampled: C.watched.output.0#1 differs"
    assert lines[1].startswith("  1 element, ")
    assert lines[2] == "  dumped in between: B (second)"
    assert answer("trampled", store, "--json", code=5).json[0]["between"] == ["B (second)"]
    assert answer("trampled", nan_store, "--step", 2).stderr == "no tensor changed without being written\n"
