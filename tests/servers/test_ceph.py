import os
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from botocore.exceptions import EndpointConnectionError

from tests.servers.ceph import CephS3, S3Bucket

pytestmark = pytest.mark.s3


@pytest.fixture
def files(s3_bucket: S3Bucket) -> Any:
    return fsspec.filesystem("s3", **s3_bucket.storage_options)


@pytest.fixture
def gateway(ceph: CephS3) -> Iterator[CephS3]:
    yield ceph
    ceph.start_gateway()


def test_objects_come_back_and_are_listed(s3_bucket: S3Bucket, files: Any) -> None:
    small, large = b"receipt", os.urandom(12 << 20)
    files.pipe_file(f"{s3_bucket.url}/a/small", small)
    with files.open(f"{s3_bucket.url}/a/large", "wb", block_size=5 << 20) as upload:
        upload.write(large)

    assert files.cat_file(f"{s3_bucket.url}/a/small") == small
    assert files.cat_file(f"{s3_bucket.url}/a/large") == large
    assert files.cat_file(f"{s3_bucket.url}/a/large", start=-100) == large[-100:]
    assert files.find(s3_bucket.url) == [f"{s3_bucket.name}/store/a/{name}" for name in ("large", "small")]


def test_objects_survive_a_killed_gateway(gateway: CephS3, s3_bucket: S3Bucket, files: Any) -> None:
    names = [f"{s3_bucket.url}/{i}" for i in range(50)]
    for name in names:
        files.pipe_file(name, name.encode())

    gateway.kill_gateway()
    with pytest.raises(EndpointConnectionError):
        fsspec.filesystem("s3", **_impatient(s3_bucket)).cat_file(names[0])
    gateway.start_gateway()

    assert [files.cat_file(name) for name in names] == [name.encode() for name in names]


def test_paused_gateway_answers_once_resumed(ceph: CephS3, s3_bucket: S3Bucket, files: Any) -> None:
    name = f"{s3_bucket.url}/x"
    files.pipe_file(name, b"x")
    with ceph.paused("gateway"), pytest.raises(OSError, match=r"[Tt]imeout"):
        fsspec.filesystem("s3", **_impatient(s3_bucket)).cat_file(name)
    assert files.cat_file(name) == b"x"


def test_wrong_secret_is_refused(s3_bucket: S3Bucket) -> None:
    stranger = fsspec.filesystem("s3", **{**s3_bucket.storage_options, "secret": "wrong"})
    with pytest.raises(PermissionError):
        stranger.pipe_file(f"{s3_bucket.url}/x", b"x")


def test_quota_refuses_objects_beyond_the_limit(ceph: CephS3, s3_bucket: S3Bucket, files: Any) -> None:
    ceph.set_quota(s3_bucket.name, 64 << 10)
    files.pipe_file(f"{s3_bucket.url}/fits", b"x" * (60 << 10))
    with pytest.raises(OSError, match="QuotaExceeded"):
        files.pipe_file(f"{s3_bucket.url}/does-not", b"x" * (8 << 10))

    ceph.set_quota(s3_bucket.name, None)
    files.pipe_file(f"{s3_bucket.url}/does-now", b"x" * (8 << 10))


@pytest.mark.slow
def test_objects_on_disk_survive_a_killed_osd(ceph: CephS3) -> None:
    del ceph  # requested only because it skips the test if Ceph is missing
    with CephS3(store="bluestore") as server:
        server.make_bucket("bucket")
        files = fsspec.filesystem("s3", **server.storage_options)
        files.pipe_file("bucket/x", b"x")
        server.kill_osd()
        server.start_osd()
        assert files.cat_file("bucket/x") == b"x"


def _impatient(bucket: S3Bucket) -> dict[str, Any]:
    """Return options that give up on a request soon, without retries (but s3fs makes some of its own)."""
    config = {"connect_timeout": 0.2, "read_timeout": 0.2, "retries": {"total_max_attempts": 1}}
    options = bucket.storage_options
    return {**options, "config_kwargs": {**options["config_kwargs"], **config}}
