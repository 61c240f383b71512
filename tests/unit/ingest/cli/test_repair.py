"""`repair` says what it would do, does it, and ends with the code that follows."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli import Answer
from tests.damages import only
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly


@pytest.fixture
def dump(tmp_path: Path) -> MadeDump:
    made = MadeDump(tmp_path / "dump")
    for step in range(2):
        made.add(np.arange(50, dtype="<f4") + step, tensor_name(time=1), step=step)
    ingest_directly(made.root, tmp_path / "run.zarr")
    only(tmp_path / "run.zarr", "rank_0/step_1/*/tensors/float32/c/0").unlink()
    return made


def test_what_is_damaged_is_mended_on_request(dump: MadeDump, tmp_path: Path, answer: Answer) -> None:
    store = tmp_path / "run.zarr"
    assert f"dump-ingest repair {store}" in answer("verify", store, code=3).stderr
    planned = answer("repair", store, code=3)
    assert "rank 0 step 1: can be repaired: rank_0/step_1/" in planned.stdout
    assert f"from the dump {dump.root}" in planned.stdout
    assert "--apply" in planned.stderr
    assert "rank 0 step 1: repaired: " in answer("repair", store, "--apply").stdout
    assert "0 damaged" in answer("verify", store).stderr
    assert answer("repair", store, "--json").json["repairs"] == []


def test_what_is_lost_is_named_and_left_out_on_request(
    dump: MadeDump, tmp_path: Path, answer: Answer
) -> None:
    store = tmp_path / "run.zarr"
    shutil.rmtree(dump.root)
    lost = answer("repair", store, "--apply", code=3)
    assert "rank 0 step 1: lost: rank_0/Net/0/1/MatMul" in lost.stdout
    assert "--accept-loss" in lost.stderr
    accepted = answer("repair", store, "--accept-loss", "--apply", "--json", code=3).json
    assert accepted["repairs"][0]["generation"]
    assert accepted["repairs"][0]["remains"] == []
    answer("repair", store)
    assert "lost: " in answer("ls", store, "--problems").stdout
    assert "lost: " in answer("export", store, tmp_path / "out", code=3).stderr


def test_what_is_no_dump_is_refused(tmp_path: Path, dump: MadeDump, answer: Answer) -> None:
    store = tmp_path / "run.zarr"
    assert "does not exist" in answer("repair", store, "--dump", tmp_path / "no", code=2).stderr
    assert "no step 9" in answer("repair", store, "--step", 9, code=2).stderr
    assert dump.root.exists()
