"""Fixtures for tests of the service: the store of a real dump."""

from pathlib import Path

import pytest

from tests.stores import DumpLibrary, ingest_directly


@pytest.fixture(scope="session")
def nan_log(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of two ranks in one of which a NaN is born in step 2; to be read only."""
    path = tmp_path_factory.mktemp("nan-log") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", path)
    return path
