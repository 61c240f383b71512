"""Signatures are those of botocore. What a gateway takes is in tests/integration/test_object_store.py."""

from datetime import UTC, datetime

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials

from workers.store.backends.s3_direct import BucketPlace, Credentials, signed_headers

_NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
_URL = "https://bucket.example.org:8443/run.zarr/a%20b%2Bc/zarr.json"


@pytest.mark.parametrize("token", [None, "session/token=="])
@pytest.mark.parametrize("byte_range", ["", "bytes=-32768", "bytes=5-9"])
def test_a_signature_is_that_of_botocore(
    byte_range: str, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: _NOW.replace(tzinfo=None))
    request = AWSRequest("GET", _URL, headers={"Range": byte_range} if byte_range else {})
    key = BotocoreCredentials("key", "secret", token)
    botocore.auth.S3SigV4Auth(key, "s3", "region-1").add_auth(request)
    place = BucketPlace.of_request(_URL, request.headers, "run.zarr/a%20b%2Bc/zarr.json")
    assert place == BucketPlace("https://bucket.example.org:8443", "bucket.example.org:8443", "/", "region-1")
    headers = signed_headers(
        place,
        "/run.zarr/a%20b%2Bc/zarr.json",
        Credentials("key", "secret", token),
        now_s=_NOW.timestamp(),
        byte_range=byte_range,
    )
    assert headers["authorization"] == request.headers["Authorization"]
    assert {name: value for name, value in headers.items() if name != "host"} == {
        name.lower(): value for name, value in request.headers.items()
    }


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        (_URL, {}),  # anonymous
        (f"{_URL}?versionId=1", {}),
        ("https://bucket.example.org/other", {}),
        (_URL, {"x-amz-request-payer": "requester"}),
        (_URL, {"Authorization": "AWS key:signature"}),  # version 2
    ],
)
def test_requests_that_are_not_plain_teach_nothing(url: str, headers: dict[str, str]) -> None:
    signed = "AWS4-HMAC-SHA256 Credential=key/20260304/region-1/s3/aws4_request, SignedHeaders=host"
    plain = {"Authorization": signed, "x-amz-date": "20260304T050607Z"} if headers or url != _URL else {}
    assert BucketPlace.of_request(url, plain | headers, "run.zarr/a%20b%2Bc/zarr.json") is None


def test_a_default_port_is_not_part_of_the_host() -> None:
    signed = "AWS4-HMAC-SHA256 Credential=key/20260304/region-1/s3/aws4_request, SignedHeaders=host"
    place = BucketPlace.of_request("http://host:80/bucket/a", {"Authorization": signed}, "a")
    assert place is not None
    assert (place.host, place.path) == ("host", "/bucket/")
