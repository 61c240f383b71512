"""Fixtures for tests of the consolidator."""

from pathlib import Path

import pytest

from tests.cube_stores import SMALL
from workers.store import commit
from workers.store.consolidated.cubes import CubeGrid
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    """An empty store."""
    found = open_objects(resolve(tmp_path / "run.zarr"))
    commit.ensure_root(found)
    return found


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: SMALL))
