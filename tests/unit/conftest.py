"""Fixtures for tests without servers and clusters."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.stores import DumpLibrary, MadeDump, ingest_directly
from workers.store import zarr_dtypes

# The same examples in every run of the continuous integration; others, each time, for whoever changes code.
settings.register_profile("unit", deadline=None, max_examples=40, derandomize="CI" in os.environ)
settings.load_profile("unit")
# zarr 3.1 does not load it by itself.
zarr_dtypes.register()


@pytest.fixture
def made(tmp_path: Path) -> MadeDump:
    """An empty dump."""
    dump = MadeDump(tmp_path / "dump")
    dump.root.mkdir()
    return dump


@pytest.fixture(scope="session")
def sketched_store(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two ranks with histograms: a NaN is born in step 2 of rank 1. Not to be changed."""
    store = tmp_path_factory.mktemp("sketched") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store, sketches=True)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "run.zarr"
