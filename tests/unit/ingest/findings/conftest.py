"""A store with findings that all tests of this folder read and none writes."""

from pathlib import Path

import pytest

import ingest
from tests.replicas import Replicas
from tests.stores import DumpLibrary, ingest_directly
from workers.rules.schema import load_rules
from workers.store.objects import ObjectStore


@pytest.fixture(scope="session")
def nan(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the dump with NaN, its steps looked at by the built-in rules."""
    store = tmp_path_factory.mktemp("rules") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store, rules=load_rules().enabled)
    ingest.consolidate(store)
    return store


@pytest.fixture(scope="session")
def url(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of the same dump, without rules."""
    store = tmp_path_factory.mktemp("stores") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    return str(store)


@pytest.fixture
def objects() -> ObjectStore:
    """An empty store in memory."""
    return Replicas().objects
