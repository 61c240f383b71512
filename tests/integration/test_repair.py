"""Damage of a store as a user meets it: named by `ingest`, and no hindrance for other steps."""

from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store, repair
from tests.cli import run
from tests.damages import only
from tests.stores import MadeDump, ingest_directly, tensor_name
from workers.errors import DamagedStore


@pytest.fixture
def dump(tmp_path: Path) -> MadeDump:
    made = MadeDump(tmp_path / "dump")
    for step in range(3):
        made.add(np.arange(500, dtype="<f4") * step, tensor_name(time=1), step=step)
    return made


@pytest.fixture
def store(dump: MadeDump, tmp_path: Path) -> Path:
    ingest_directly(dump.root, tmp_path / "run.zarr")
    return tmp_path / "run.zarr"


def test_ingest_names_damage_and_writes_a_lost_root_again(dump: MadeDump, store: Path) -> None:
    root = (store / "zarr.json").read_bytes()
    (store / "zarr.json").unlink()
    only(store, "rank_0/step_1/*/tensors/float32/c/0").unlink()
    with pytest.raises(DamagedStore, match=r"its zarr\.json is missing"):
        open_store(store)

    named = run("ingest", dump.root, "--store", store, code=3)

    assert (store / "zarr.json").read_bytes() == root
    assert "2 steps unchanged" in named.stderr
    assert "rank 0 step 1" in named.stderr
    assert f"dump-ingest repair {store}" in named.stderr
    assert repair(store, apply=True).is_clean
    (store / "zarr.json").write_bytes(root[:9])
    assert "dump-ingest repair" in run("ingest", dump.root, "--store", store, code=3).stderr
    assert repair(store, apply=True).is_clean
    assert (store / "zarr.json").read_bytes() == root


@pytest.mark.parametrize("pattern", ["zarr.json", "*/index/labels/c/0/0"])
def test_a_step_that_may_not_be_read_stops_no_answer(
    pattern: str, store: Path, unprivileged: tuple[str, ...]
) -> None:
    only(store, f"rank_0/step_1/{pattern}").chmod(0)
    listed = run("find", store, "--name", "*", "--json", code=3, prefix=unprivileged)
    assert [row["step"] for row in listed.json] == [0, 2]
    assert "Permission denied. Check owner and mode" in listed.stderr
    assert "AWS" not in listed.stderr
    assert "repair" not in listed.stderr  # which may not read it, either
