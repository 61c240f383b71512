"""The contract holds for stores as they are opened, and for the wrapper that other tests use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_store_contract import ObjectStoreContract, memory_url
from tests.wrapped_objects import WrappedObjects
from workers.store.objects import ObjectStore
from workers.store.opening import connect, resolve


class TestOpenedDirectory(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return connect(resolve(f"file://{tmp_path}/store"))


class TestOpenedUrl(ObjectStoreContract):
    @pytest.fixture
    def objects(self) -> Iterator[ObjectStore]:
        with memory_url() as url:
            yield connect(resolve(url))


class TestWrapped(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return WrappedObjects(connect(resolve(tmp_path / "store")))
