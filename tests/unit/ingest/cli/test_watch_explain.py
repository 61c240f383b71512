"""`dump-ingest watch --explain` as people type it."""

from pathlib import Path

from tests.cli import run
from tests.npy_files import MadeDump


def test_flags_that_do_nothing_and_a_dump_that_is_missing_are_refused(made: MadeDump, store: Path) -> None:
    assert "no dump" in run("watch", "--store", store, code=2).stderr
    assert "no dump" in run("watch", "--explain", "--store", store, code=2).stderr
    for flags in (["--json"], ["--from", "http://host:1"], ["--rank", 3], ["--step", 40]):
        refused = run("watch", made.root, "--store", store, *flags, code=2).stderr
        assert f"{flags[0]} does nothing without --explain" in refused
    assert "no store" in run("watch", made.root, "--explain", code=2).stderr
    unreachable = run("watch", "--explain", "--from", "http://127.0.0.1:1", code=1).stderr
    assert "no watcher answers at http://127.0.0.1:1/steps" in unreachable
