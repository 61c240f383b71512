"""`dump-ingest sketch` as it is typed."""

from pathlib import Path

from tests.cli import Answer
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly


def test_steps_get_histograms_once(dumps: DumpLibrary, tmp_path: Path, answer: Answer) -> None:
    store = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    made = answer("sketch", store, "--rank", 1, "--step", 2, "--json").json
    assert [(step["rank"], step["step"], step["tensors"] > 20) for step in made["added"]] == [(1, 2, True)]
    done = answer("sketch", store)
    assert "added to 5 steps; 1 step had them" in done.stderr
    assert f"`dump-ingest consolidate {store} --rebuild`" in done.stderr
    assert "added to 0 steps" in answer("sketch", store).stderr
    assert answer("precision", store, "Log.*", "--json").json["without"] == 0
