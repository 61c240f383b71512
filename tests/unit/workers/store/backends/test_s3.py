"""How S3 is asked. What a real gateway answers is in tests/integration/test_object_store.py."""

from typing import Any

import fsspec
import pytest

from workers.errors import StoreDenied, StoreUnavailable
from workers.store.backends.remote import S3Objects
from workers.store.model import StoreAddress


def client_options(options: str = "{}") -> dict[str, Any]:
    objects = S3Objects(StoreAddress("s3://bucket/run.zarr", options))
    return dict(objects._fs.config_kwargs)


def test_checksums_that_gateways_refuse_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REQUEST_CHECKSUM_CALCULATION", raising=False)
    assert client_options()["request_checksum_calculation"] == "when_required"
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    assert "request_checksum_calculation" not in client_options()


def test_options_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the address, else those of a configuration file of fsspec."""
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"max_pool_connections": 7}})
    assert client_options()["max_pool_connections"] == 7
    given = client_options('{"config_kwargs": {"read_timeout": 3}}')
    assert (given["read_timeout"], given["max_pool_connections"]) == (3, 32)


def test_listings_are_not_cached() -> None:
    assert not S3Objects(StoreAddress("s3://bucket"))._fs.dircache.use_listings_cache


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


def test_objects_that_stay_refused_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(*[["run.zarr/b"]] * 9)
    with pytest.raises(StoreUnavailable, match=r"run\.zarr/b and 0 more: SlowDown"):
        objects_at(gateway, monkeypatch).delete_many(["a", "b"])
    assert len(gateway.requests) == 3


def test_a_refusal_for_want_of_permission_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(["run.zarr/a"], code="AccessDenied")
    with pytest.raises(StoreDenied, match="AccessDenied"):
        objects_at(gateway, monkeypatch).delete_many(["a"])
    assert len(gateway.requests) == 1
