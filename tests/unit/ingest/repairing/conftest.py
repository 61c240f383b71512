"""A small store with everything in it that can be damaged."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ingest.api import consolidate, open_store
from tests.stores import MadeDump, ingest_directly, tensor_name
from workers.rules.schema import load_rules
from workers.store.objects import ObjectStore


def fill(dump: MadeDump) -> None:
    """Dump steps 1 to 3 of two ranks: floats, integers, copies, a text file; and NaN in the last step."""
    rng = np.random.default_rng(3)
    for step in range(1, 4):
        shared = rng.normal(size=200).astype("<f4")
        for rank in range(2):
            own = rng.normal(size=200).astype("<f4")
            if step == 3:
                own[7] = np.nan
            dump.add(shared, tensor_name(slot=0, time=1), step=step, rank=rank)
            dump.add(own, tensor_name(slot=1, time=2), step=step, rank=rank)
            dump.add(rng.integers(0, 99, 200, np.int32), tensor_name(slot=2, time=3), step=step, rank=rank)
            dump.add(b"text %d %d" % (rank, step) * 9, "notes.txt", step=step, rank=rank)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `dump` and the undamaged `run.zarr`; not to be changed."""
    root = tmp_path_factory.mktemp("whole")
    dump = MadeDump(root / "dump")
    fill(dump)
    ingest_directly(dump.root, root / "run.zarr", rules=load_rules().enabled, sketches=True)
    consolidate(root / "run.zarr")
    return root


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    """A copy of the store, to be damaged. Its commits name the dump."""
    return Path(shutil.copytree(whole / "run.zarr", tmp_path / "run.zarr"))


@pytest.fixture
def whole_objects(whole: Path) -> ObjectStore:
    """The objects of the undamaged store; not to be changed."""
    return open_store(whole / "run.zarr").objects


@pytest.fixture(scope="session")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undamaged store whose dump is gone; not to be changed."""
    root = tmp_path_factory.mktemp("lone")
    dump = MadeDump(root / "dump")
    fill(dump)
    ingest_directly(dump.root, root / "lone.zarr", rules=load_rules().enabled, sketches=True)
    shutil.rmtree(dump.root)
    return root / "lone.zarr"


@pytest.fixture
def lone_store(lone: Path, tmp_path: Path) -> Path:
    """A copy of the store whose dump is gone, to be damaged."""
    return Path(shutil.copytree(lone, tmp_path / "lone.zarr"))
