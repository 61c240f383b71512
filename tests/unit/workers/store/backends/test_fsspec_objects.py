"""File systems of fsspec as store: in memory, and the local one, by the same code."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.object_store_contract import ObjectStoreContract, memory_url
from workers.errors import StoreUnavailable, UsageError
from workers.store.backends.remote import FsspecObjects, _modified_at
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def objects(self) -> Iterator[ObjectStore]:
        with memory_url() as url:
            yield FsspecObjects(StoreAddress(url))


class TestLocal(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        (tmp_path / "store").mkdir()
        return FsspecObjects(StoreAddress(f"file://{tmp_path}/store", '{"auto_mkdir": true}'))


def test_an_unknown_protocol_is_refused_with_an_example() -> None:
    with pytest.raises(UsageError, match="nonsense") as raised:
        FsspecObjects(StoreAddress("nonsense://somewhere"))
    assert "s3://bucket/prefix" in raised.value.hint


def test_a_missing_option_is_refused() -> None:
    with pytest.raises(UsageError, match="store github://"):
        FsspecObjects(StoreAddress("github://"))


def test_errors_name_the_object_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = FsspecObjects(StoreAddress("memory://away"))

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionResetError("the line is cut")

    monkeypatch.setattr(type(objects._fs), "cat_file", refuse)
    with pytest.raises(StoreUnavailable, match="cannot read memory://away/a: ConnectionResetError: the line"):
        objects.get("a")
    with pytest.raises(StoreUnavailable, match="cannot read memory://away/a: ConnectionResetError: the line"):
        objects.get_many(["a", "b"])


@pytest.mark.parametrize(
    "info",
    [
        {"LastModified": datetime(2026, 1, 2, tzinfo=UTC)},
        {"mtime": datetime(2026, 1, 2, tzinfo=UTC).timestamp()},
        {"updated": "2026-01-02T00:00:00+00:00"},
        {"created": datetime(2026, 1, 2)},  # noqa: DTZ001  (some backends leave the zone out; they mean UTC)
    ],
)
def test_the_time_of_an_object_is_known_in_every_form(info: dict[str, Any]) -> None:
    assert _modified_at(info) == datetime(2026, 1, 2, tzinfo=UTC).timestamp()


def test_an_object_of_unknown_time_never_seems_old() -> None:
    """Garbage collection spares what is young."""
    assert abs(time.time() - _modified_at({"size": 3})) < 60
