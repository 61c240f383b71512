"""`dump-ingest export` as it is typed."""

import shutil
from pathlib import Path

from tests.cli import Answer


def test_tensors_that_gc_removed_are_counted(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    store = Path(shutil.copytree(nan_store, tmp_path / "run.zarr"))
    answer("gc", store, "--tensors-around-anomalies", 0, "--apply")
    done = answer("export", store, tmp_path / "out", "--rank", 0, "--step", 1, code=4)
    assert "not exported: rank 0 step 1: 243 files: the tensors were removed" in done.stderr


def test_a_choice_of_nothing_is_said_with_what_is_near(
    nan_store: Path, answer: Answer, tmp_path: Path
) -> None:
    printed = answer("export", nan_store, tmp_path / "out", "--op-type", "log").stderr
    assert (
        "warning: no tensor fulfils the conditions\nhint: No tensor has the op_type log; case matters: Log"
        in printed
    )
    assert "0 files, 0 B" in printed


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
