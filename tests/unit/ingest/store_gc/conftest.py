"""Fixtures for tests of gc: a store on which it has something to do."""

import shutil
from pathlib import Path

import pytest

from tests.gc_stores import make_store


@pytest.fixture(scope="session")
def gc_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a dump and its store, shared by all tests; see `make_store`."""
    root = tmp_path_factory.mktemp("gc")
    make_store(root)
    return root


@pytest.fixture
def store(gc_base: Path, tmp_path: Path) -> Path:
    """A copy of the store for one test."""
    return shutil.copytree(gc_base / "run.zarr", tmp_path / "run.zarr")


@pytest.fixture
def dump(gc_base: Path) -> Path:
    """The dump from which the store was made."""
    return gc_base / "dump"
