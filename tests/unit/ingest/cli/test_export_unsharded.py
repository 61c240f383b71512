"""`dump-ingest export --unsharded` as it is typed."""

from pathlib import Path

from tests.cli import Answer


def test_whole_tensors_are_written_and_open_ones_are_named(
    nan_store: Path, answer: Answer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("export", nan_store, out, "--step", 2, "--name", "Parameter.*")
    done = answer(*words, "--unsharded", code=4)
    assert "tensors, " in done.stderr
    assert f"in 1 file in {out}" in done.stderr
    assert "not exported: " in done.stderr
    assert "how the ranks hold it is not known; by the shapes of its pieces: " in done.stderr
    assert "  Name the layout with --placement or --layout-map;" in done.stderr
    assert [path.name for path in out.iterdir()] == ["step2.safetensors"]
    assert "exists" in answer(*words, "--unsharded", code=2).stderr
    layout_map = tmp_path / "map.yaml"
    layout_map.write_text('placements: [{name: "Parameter.*", a: "partial sum"}]\n')
    rows = answer(*words, "--layout-map", layout_map, "--overwrite", "--json").json
    assert {(row["placement"], row["why"]) for row in rows} == {("partial sum", "given")}


def test_words_that_do_not_fit_are_refused(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    words = ("export", nan_store, tmp_path / "out")
    both = answer(*words, "--placement", "shard 0", "--layout-map", tmp_path / "map.yaml", code=2)
    assert "both say how ranks hold tensors" in both.stderr
    assert "--unsharded takes all ranks" in answer(*words, "--unsharded", "--rank", 0, code=2).stderr
    nothing = answer(*words, "--unsharded", "--name", "nothing")
    assert "no tensor fulfils the conditions" in nothing.stderr
