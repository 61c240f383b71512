"""`dump-ingest watch` as it is typed."""

from pathlib import Path

import pytest

from tests.cli import Answer, start
from tests.in_process import run_here
from tests.npy_files import MadeDump


def test_it_waits_for_a_dump_and_says_once_why(tmp_path: Path) -> None:
    with start("watch", tmp_path / "dump", "--store", tmp_path / "run.zarr") as watcher:
        watcher.wait_until(lambda: watcher.events("waiting_for_dump"))
        (tmp_path / "dump").mkdir()
        watcher.wait_until(lambda: len(watcher.events("waiting_for_dump")) == 2)
        assert watcher.terminate() == 0
    first, second = (event["reason"] for event in watcher.events("waiting_for_dump"))
    assert "does not exist" in first
    assert "no dump of a known layout" in second
    assert not (tmp_path / "run.zarr").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no store is named"),
        (["--store", "x", "--keep-last", "2"], "--keep-last does nothing"),
        (["--store", "x", "--metrics", "9108"], "metrics (--metrics): must be host:port"),
        (
            ["--store", "x", "--after-commit", "remove"],
            "must be 'keep' or 'delete', got 'remove'",
        ),
        (["other", "--store", "x"], "watch DUMP --store run.zarr"),
    ],
)
def test_mistakes_are_explained_at_once(
    answer: Answer, tmp_path: Path, options: list[str], message: str
) -> None:
    assert message in answer("watch", tmp_path / "dump", *options, code=2).stderr


def test_a_store_named_as_the_dump_is_refused(answer: Answer, tmp_path: Path) -> None:
    (tmp_path / "run.zarr" / "rank_0" / "Net" / "0" / "1").mkdir(parents=True)
    (tmp_path / "run.zarr" / "zarr.json").write_text("{}")
    refused = answer("watch", tmp_path / "run.zarr", "--store", tmp_path / "other.zarr", code=2).stderr
    assert "is a store, not a dump" in refused


def test_flags_that_do_nothing_and_a_dump_that_is_missing_are_refused(made: MadeDump, store: Path) -> None:
    assert "no dump" in run_here("watch", "--store", store, code=2).stderr
    assert "no dump" in run_here("watch", "--explain", "--store", store, code=2).stderr
    for flags in (["--json"], ["--from", "http://host:1"], ["--rank", 3], ["--step", 40]):
        refused = run_here("watch", made.root, "--store", store, *flags, code=2).stderr
        assert f"{flags[0]} does nothing without --explain" in refused
    assert "no store" in run_here("watch", made.root, "--explain", code=2).stderr
    unreachable = run_here("watch", "--explain", "--from", "http://127.0.0.1:1", code=1).stderr
    assert "no watcher answers at http://127.0.0.1:1/steps" in unreachable
