"""`dump-ingest watch --explain` as people type it."""

from pathlib import Path

import numpy as np

from tests.cli import run
from tests.npy_files import MadeDump, npy_bytes
from tests.pipeline import ingest_directly


def test_explain_prints_a_row_for_each_step(made: MadeDump, store: Path) -> None:
    made.add(np.ones(3), rank=3, step=39)
    ingest_directly(made.root, store)
    made.add(npy_bytes(np.ones(300))[:200], rank=3, step=40)
    words = ("watch", made.root, "--explain", "--store", store, "--quiet", 60)
    done = run(*words)
    lines = [line.split(maxsplit=4) for line in done.stdout.splitlines()]
    assert lines[0] == ["rank", "step", "phase", "files", "why"]
    assert [line[:4] for line in lines[1:]] == [["3", "39", "committed", "1"], ["3", "40", "waiting", "1"]]
    assert "is not whole yet" in lines[2][4] or "quiet for" in lines[2][4]
    assert done.stderr.strip() in {"1 committed, 1 waiting", "1 waiting, 1 committed"}

    (row,) = run(*words, "--json", "--rank", 3, "--step", 40).json
    assert (row["rank"], row["step"], row["phase"], row["source"]) == (3, 40, "waiting", None)
    deleting = run(*words, "--after-commit", "delete", "--step", 39).stdout.splitlines()
    assert deleting[0].endswith("dump files")
    assert deleting[1].endswith("queued: its files wait to be read back and compared, and are then deleted")
    assert run(*words, "--step", 7).stderr.strip() == (
        "no such step in the dump, which has ranks 3 and steps 39-40"
    )


def test_flags_that_do_nothing_and_a_dump_that_is_missing_are_refused(made: MadeDump, store: Path) -> None:
    assert "no dump" in run("watch", "--store", store, code=2).stderr
    assert "no dump" in run("watch", "--explain", "--store", store, code=2).stderr
    for flags in (["--json"], ["--from", "http://host:1"], ["--rank", 3], ["--step", 40]):
        refused = run("watch", made.root, "--store", store, *flags, code=2).stderr
        assert f"{flags[0]} does nothing without --explain" in refused
    assert "no store" in run("watch", made.root, "--explain", code=2).stderr
    unreachable = run("watch", "--explain", "--from", "http://127.0.0.1:1", code=1).stderr
    assert "no watcher answers at http://127.0.0.1:1/steps" in unreachable
