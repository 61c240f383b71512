"""`dump-ingest ls` as it is typed."""

from pathlib import Path

import numpy as np

from tests.cli import Answer
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly
from tests.served_watcher import served_watcher


def test_problems_are_listed_with_their_reasons(made: MadeDump, store: Path, answer: Answer) -> None:
    made.add(b"no npy")
    ingest_directly(made.root, store)
    (row,) = answer("ls", store, "--problems", "--json").json
    assert row["kind"] == "quarantined"
    assert row["problem"] in answer("ls", store, "--problems").stdout


def test_a_rank_from_two_dumps_is_warned_of(
    made: MadeDump, store: Path, tmp_path: Path, answer: Answer
) -> None:
    """As two runs that were mixed by mistake, or a dump that was moved."""
    made.add(b"x", "file.txt", step=0)
    ingest_directly(made.root, store)
    assert answer("ls", store).stderr == ""
    other = MadeDump(tmp_path / "other")
    other.add(b"x", "file.txt", step=4)
    ingest_directly(other.root, store)
    text = " ".join(answer("ls", store).stderr.split())
    assert "rank 0 comes from 2 dump directories" in text
    assert str(other.root) in text.replace(" ", "")
    assert {row["root"] for row in answer("ls", store, "--json").json} == {str(made.root), str(other.root)}


def test_watchers_of_other_stores_are_not_shown(
    nan_store: Path, made: MadeDump, tmp_path: Path, answer: Answer
) -> None:
    made.add(np.ones(3))
    with served_watcher(made.root, tmp_path / "other.zarr") as (url, service):
        service.tick()
        done = answer("ls", nan_store, "--watchers", url)
        assert answer("ls", nan_store, "--watchers", url, "--json").json == []
    assert (done.stdout, done.stderr) == ("", "the watchers that answer write to other stores\n")
