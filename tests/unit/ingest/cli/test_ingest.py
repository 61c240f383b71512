"""`dump-ingest ingest` as it is typed, with workers of its own."""

from pathlib import Path

import numpy as np
import pytest

from tests import checker
from tests.cli import Answer, run
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump


@pytest.mark.dask
def test_a_dump_is_ingested_once_and_then_unchanged(dumps: DumpLibrary, store: Path) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    done = run("ingest", dump, "--store", store)
    assert done.stdout.splitlines()[-1].split()[:5] == ["all", "3", "complete", "1458", "9"]
    assert f"dump-ingest origin {store}" in done.stderr
    assert f"findings of rules: 14 critical; by cause: dump-ingest anomalies {store}\n" in done.stderr
    checker.check(store, dump)
    again = run("ingest", dump, "--store", store)
    assert (again.stdout, again.stderr) == ("", "6 steps of 2 ranks unchanged: already in the store.\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep-last", "3"], "--keep-last does nothing without --after-commit delete"),
        (["--dry-run"], "--dry-run does nothing without --after-commit delete"),
        (["--after-commit", "remove"], "after_commit (--after-commit)"),
        (["--rank-map", "0"], "device=rank pairs"),
    ],
)
def test_mistakes_are_explained_before_anything_is_written(
    dumps: DumpLibrary, store: Path, answer: Answer, options: list[str], message: str
) -> None:
    words = ("ingest", dumps["nan-log-2rank"] / "dump", "--store", store, *options)
    assert message in answer(*words, code=2).stderr
    assert not store.exists()


def test_a_store_in_the_dump_is_refused(dumps: DumpLibrary, answer: Answer) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    assert "would lie in the dump" in answer("ingest", dump, "--store", dump / "run.zarr", code=2).stderr


def test_a_store_in_another_dump_is_refused(made: MadeDump, tmp_path: Path, answer: Answer) -> None:
    made.add(np.zeros(3))
    other = MadeDump(tmp_path / "other")
    other.add(np.ones(3))
    before = sorted(other.root.rglob("*"))
    for place in (other.root, other.root / "rank_0"):
        refused = answer("ingest", made.root, "--store", place, code=2).stderr
        assert f"error: {place} holds a dump, not a store\n  Is --store right?" in refused
        told = answer("doctor", made.root, "--store", place, code=1).stdout
        assert f"{place} holds a dump, not a store" in told
    assert sorted(other.root.rglob("*")) == before
