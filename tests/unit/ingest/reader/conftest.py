"""Fixtures for tests of the reader: a store of many steps, and one of several shards."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.api import DumpStore, open_store
from tests.counted_requests import CountedRequests
from tests.stores import SMALL_GRID, MadeDump, ingest_directly, tensor_name

RANKS, STEPS = 4, 50


@pytest.fixture
def many(made: MadeDump, store: Path) -> Path:
    """A store of 4 ranks with 50 steps each, all of which hold what the first one holds."""
    made.add(np.arange(50.0, dtype=np.float32))
    ingest_directly(made.root, store)
    leaf = json.loads((store / "rank_0/step_0/zarr.json").read_text())
    (generation,) = [path for path in (store / "rank_0/step_0").iterdir() if path.is_dir()]
    for rank in range(RANKS):
        (store / f"rank_{rank}").mkdir(exist_ok=True)
        for step in range(STEPS):
            target = store / f"rank_{rank}/step_{step}"
            if (rank, step) != (0, 0):
                target.mkdir()
                (target / generation.name).symlink_to(generation)
                leaf["attributes"]["dump_ingest"] |= {"rank": rank, "step": step}
                (target / "zarr.json").write_text(json.dumps(leaf))
    return store


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> CountedRequests:
    """The requests of this test to object stores."""
    return CountedRequests(monkeypatch)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a dump, and with its store without and with cubes: `filled`, `consolidated`."""
    directory = tmp_path_factory.mktemp("made")
    made, rng = MadeDump(directory / "dump"), np.random.default_rng(0)
    for rank in range(2):
        for step in (8, 9):
            for slot in range(10):
                values = rng.normal(size=50).astype("<f4")
                values[0] = np.nan if (rank, step, slot) == (1, 9, 4) else 0
                made.add(
                    values, tensor_name("MatMul.a" if slot % 2 else "Log.b", slot=slot), step=step, rank=rank
                )
    ingest_directly(made.root, directory / "filled", SMALL_GRID)
    shutil.copytree(directory / "filled", directory / "consolidated")
    ingest.consolidate(directory / "consolidated")
    return directory


@pytest.fixture
def filled(made_once: Path, made: MadeDump, store: Path) -> DumpStore:
    """A store of two ranks and two steps with ten tensors each, in several shards."""
    shutil.copytree(made_once / "dump", made.root, dirs_exist_ok=True)
    return open_store(str(shutil.copytree(made_once / "filled", store)))


@pytest.fixture
def consolidated(made_once: Path, tmp_path: Path) -> DumpStore:
    """The same with cubes; one element of rank 1 step 9 is NaN."""
    return open_store(str(shutil.copytree(made_once / "consolidated", tmp_path / "consolidated.zarr")))
