"""File systems of fsspec as store: in memory, and the local one, by the same code."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from tests.object_store_contract import ObjectStoreContract, memory_url
from workers import events
from workers.errors import ClockSkewed, StoreDenied, UsageError
from workers.events import Event
from workers.store.backends.failures import Translated, seconds_ahead
from workers.store.backends.remote import FsspecObjects, S3Listener, S3Objects, _modified_at
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore, StoreClockSeen


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


class Gateway:
    """Answers requests to delete objects: each time, it refuses those that are named for it."""

    def __init__(self, *refused: list[str], code: str = "SlowDown") -> None:
        self.requests: list[list[str]] = []
        self._refused, self._code = list(refused), code

    def __call__(self, _method: str, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:  # noqa: N803  (of S3)
        assert Bucket == "bucket"
        keys = [entry["Key"] for entry in Delete["Objects"]]
        self.requests.append(keys)
        refused = self._refused.pop(0) if self._refused else []
        return {"Errors": [{"Key": key, "Code": self._code} for key in refused if key in keys]}


def objects_at(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> S3Objects:
    objects = S3Objects(StoreAddress("s3://bucket/run.zarr"))
    monkeypatch.setattr(objects._fs, "call_s3", gateway, raising=False)
    return objects


def test_a_thousand_objects_are_deleted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway()
    objects_at(gateway, monkeypatch).delete_many([str(number) for number in range(2500)])
    assert [len(keys) for keys in gateway.requests] == [1000, 1000, 500]
    assert gateway.requests[2][-1] == "run.zarr/2499"


def test_objects_that_a_busy_gateway_refuses_are_deleted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(["run.zarr/b", "run.zarr/c"], ["run.zarr/c"])
    objects_at(gateway, monkeypatch).delete_many(["a", "b", "c"])
    assert [len(keys) for keys in gateway.requests] == [3, 2, 1]


@pytest.mark.parametrize(("ahead_s", "least", "most"), [(0, 0, 0), (7200, 7198, 7202), (-600, -602, -598)])
def test_the_date_of_an_answer_tells_how_far_the_clocks_are_apart(
    ahead_s: float, least: float, most: float
) -> None:
    seen = seconds_ahead({"date": formatdate(time.time() - ahead_s, usegmt=True)})
    assert seen is not None
    assert least <= seen <= most


def test_the_clocks_are_compared_now_and_then() -> None:
    heard: list[Event] = []
    events.subscribe(heard.append)
    listener = S3Listener()
    try:
        for _ in range(3):
            listener.receive({"headers": {"date": formatdate(time.time() - 3600, usegmt=True)}})
        listener.receive(None)
    finally:
        events.unsubscribe(heard.append)
    (seen,) = heard
    assert isinstance(seen, StoreClockSeen)
    assert 3598 <= seen.ahead_s <= 3602


class _ClientError(Exception):
    """What botocore raises."""

    def __init__(self, code: str, ahead_s: float) -> None:
        super().__init__(code)
        headers = {"date": formatdate(time.time() - ahead_s, usegmt=True)}
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPHeaders": headers}}


def _raise_as_s3fs(error: _ClientError) -> None:
    with Translated("read", StoreAddress("s3://bucket/run.zarr"), "zarr.json"):
        raise PermissionError("None") from error


@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "403"])
def test_a_refusal_for_the_time_is_said_with_both_times_and_is_no_question_of_credentials(code: str) -> None:
    with pytest.raises(
        ClockSkewed, match=r"here it is .* UTC, at the store .*: the clock of this host"
    ) as raised:
        _raise_as_s3fs(_ClientError(code, 7200))
    assert "7200 s ahead" in raised.value.message or "7201 s ahead" in raised.value.message
    assert "chronyc" in raised.value.hint
    assert not isinstance(raised.value, StoreDenied)
