"""Fixtures for tests of the reader: a store of many steps, and one of several shards."""

import json
from pathlib import Path

import numpy as np
import pytest

from ingest.api import DumpStore, open_store
from tests.counted_requests import CountedRequests
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import SMALL_GRID, ingest_directly

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


@pytest.fixture
def filled(made: MadeDump, store: Path) -> DumpStore:
    """A store of two ranks and two steps with ten tensors each, in several shards."""
    rng = np.random.default_rng(0)
    for rank in range(2):
        for step in (8, 9):
            for slot in range(10):
                values = rng.normal(size=50).astype("<f4")
                values[0] = np.nan if (rank, step, slot) == (1, 9, 4) else 0
                made.add(
                    values, tensor_name("MatMul.a" if slot % 2 else "Log.b", slot=slot), step=step, rank=rank
                )
    ingest_directly(made.root, store, SMALL_GRID)
    return open_store(str(store))
