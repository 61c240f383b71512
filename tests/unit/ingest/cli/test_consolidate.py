"""`dump-ingest consolidate` as it is typed."""

import shutil
from pathlib import Path

from tests.cli import Answer


def test_the_view_is_made_and_then_up_to_date(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    store = shutil.copytree(nan_store, tmp_path / "run.zarr")
    first = answer("consolidate", store).stderr.splitlines()
    assert first == ["steps added: 1-3", "the view has 3 steps, 2 ranks, 243 tensors"]
    again = answer("consolidate", store).stderr.splitlines()
    assert again == ["nothing is new", "the view has 3 steps, 2 ranks, 243 tensors"]
    rebuilt = answer("consolidate", store, "--rebuild", "--json").json
    assert (rebuilt["appended"], rebuilt["tensors"]) == ([1, 2, 3], 243)


def test_a_damaged_step_is_named_and_ends_with_3(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    store = Path(shutil.copytree(nan_store, tmp_path / "run.zarr"))
    (index,) = (store / "rank_1" / "step_2").glob("*/index")
    shutil.rmtree(index)
    done = answer("consolidate", store, code=3)
    assert "damaged: " in done.stderr
    assert "rank 1 step 2" in done.stderr


def test_what_adds_sketches_to_old_steps_is_named(nan_store: Path, answer: Answer) -> None:
    assert "dump-ingest sketch" in answer("consolidate", "--help").stdout
    told = answer("consolidate", nan_store, "--fingerprints", code=2).stderr
    assert "no such option: --fingerprints" in told
    assert "`dump-ingest sketch STORE` adds" in told
