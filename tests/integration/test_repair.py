"""Damage of a store as a user meets it: said by every ingest, mended by `repair`, and gone."""

from pathlib import Path

import numpy as np
import pytest

from tests.cli import run
from tests.damages import flip, only
from tests.npy_files import MadeDump, tensor_name


@pytest.fixture
def dump(tmp_path: Path) -> MadeDump:
    made = MadeDump(tmp_path / "dump")
    for step in range(3):
        made.add(np.arange(500, dtype="<f4") * step, tensor_name(time=1), step=step)
    return made


def test_a_damaged_step_is_said_and_mended(dump: MadeDump, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    run("ingest", dump.root, "--store", store)
    only(store, "rank_0/step_1/*/tensors/float32/c/0").unlink()

    said = run("ingest", dump.root, "--store", store, code=3)
    assert "2 steps unchanged" in said.stderr
    assert "rank 0 step 1" in said.stderr
    assert f"dump-ingest repair {store}" in said.stderr
    assert "dump-ingest repair" in run("verify", store, code=3).stderr
    planned = run("repair", store, code=3)
    assert "can be repaired: rank_0/step_1/" in planned.stdout
    assert f"from the dump {dump.root}" in planned.stdout
    run("repair", store, "--apply")
    assert "0 damaged" in run("verify", store).stderr
    run("ingest", dump.root, "--store", store)

    # A listing does not show a flipped byte: that is for `verify`.
    flip(only(store, "rank_0/step_1/*/tensors/float32/c/0"), 5)
    run("ingest", dump.root, "--store", store)
    assert run("repair", store, "--json", code=3).json["repairs"][0]["step"] == 1
    assert run("repair", store, "--apply", "--json").json["repairs"][0]["remains"] == []


def test_a_lost_root_is_written_again(dump: MadeDump, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    run("ingest", dump.root, "--store", store)
    root = (store / "zarr.json").read_bytes()
    (store / "zarr.json").unlink()
    missing = run("ls", store, code=3)
    assert "its zarr.json is missing" in missing.stderr
    assert "repair" in missing.stderr
    run("ingest", dump.root, "--store", store)
    assert (store / "zarr.json").read_bytes() == root

    (store / "zarr.json").write_bytes(root[:9])
    assert "repair" in run("ingest", dump.root, "--store", store, code=3).stderr
    run("repair", store, "--apply")
    assert (store / "zarr.json").read_bytes() == root


def test_a_damaged_view_is_named_and_made_again(dump: MadeDump, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    run("ingest", dump.root, "--store", store)
    flip(only(store, "consolidated/fingerprint/c/0/0"))
    run("find", store, "--consolidated", "--where", "max > 1", code=3)
    assert "consolidated" in run("verify", store, code=3).stdout
    run("consolidate", store, "--check")
    run("verify", store)
    run("find", store, "--consolidated", "--where", "max > 1")
