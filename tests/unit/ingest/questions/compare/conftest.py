"""Fixtures for tests of comparisons."""

import pytest

from tests.stores import DumpLibrary, ingest_directly


@pytest.fixture(scope="session")
def nan_log(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The store of a real run of two ranks, in which a NaN is born in step 2 on rank 1; read-only."""
    store = tmp_path_factory.mktemp("compare") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"], store)
    return str(store)
