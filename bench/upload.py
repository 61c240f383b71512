"""Upload a directory into a bucket of the S3 server that a benchmark runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import S3Store

    from tests.servers.ceph import CephS3

#: How many objects are on their way at once.
_AT_ONCE = 32


def bucket_client(ceph: CephS3, bucket: str) -> S3Store:
    """Return a client of obstore for one bucket."""
    from obstore.store import S3Store  # only in the environment of benchmarks

    return S3Store(
        bucket,
        endpoint=ceph.endpoint_url,
        access_key_id=ceph.access_key,
        secret_access_key=ceph.secret_key,
        region="default",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def upload(directory: Path, client: S3Store, prefix: str) -> int:
    """Put each file below `directory` below `prefix`; return how many there were."""
    paths = [path for path in directory.rglob("*") if path.is_file()]

    def put(path: Path) -> None:
        client.put(f"{prefix}/{path.relative_to(directory).as_posix()}", path.read_bytes())

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(put, paths))
    return len(paths)
