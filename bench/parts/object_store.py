"""Into an S3 object store: Ceph with its gateway, in memory, on the same machine and its cores."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import numpy as np

from bench.measure import Measure, Ratio, Table, in_turns, seconds
from bench.setting import WORKERS, Setting, environment, ingest, workers
from ingest.reader.store import open_store
from tests.servers.ceph import PROGRAMS, CephS3
from workers.store.objects import open_objects, resolve

_BUCKET = "bench"
_SMALL_NBYTES = 4096


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield times and requests; nothing where Ceph is not installed."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        yield Table("S3: not measured", ("not installed",), tuple((name,) for name in missing))
        return
    with CephS3() as ceph, environment(_credentials(ceph)):
        ceph.make_bucket(_BUCKET)
        files = fsspec.filesystem("s3", **ceph.storage_options)
        with workers() as client:
            dump = setting.load.directory
            bucket = _Bucket(files)
            bucket.time(lambda url: ingest(client, dump, url))
            times = in_turns(
                min(setting.rounds, 3),
                {
                    "ingest": lambda: bucket.time(lambda url: ingest(client, dump, url)),
                    "put": lambda: bucket.time(lambda url: files.put(str(dump), url, recursive=True)),
                },
            )
            yield Measure(
                f"ingest, {WORKERS} workers, S3",
                "s3fs.put(recursive=True)",
                "s",
                times["ingest"],
                times["put"],
                floor=5.0,
            )
            yield from _objects(setting, ceph, bucket)
            yield from _reading(bucket, lambda url: ingest(client, dump, url))


def _credentials(ceph: CephS3) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": ceph.access_key,
        "AWS_SECRET_ACCESS_KEY": ceph.secret_key,
        "AWS_ENDPOINT_URL": ceph.endpoint_url,
        "AWS_DEFAULT_REGION": "default",
    }


class _Bucket:
    """Gives each write a prefix of its own, and removes what was written."""

    def __init__(self, files: Any) -> None:
        self.files = files
        self._count = 0

    def time(self, write: Callable[[str], object]) -> float:
        """Return the seconds of `write(url)`."""
        url = self.fresh()
        try:
            return seconds(lambda: write(url))
        finally:
            self.files.rm(url, recursive=True)

    def fresh(self) -> str:
        """Return the URL of a prefix with nothing in it."""
        self._count += 1
        return f"s3://{_BUCKET}/{self._count}"


def _objects(setting: Setting, ceph: CephS3, bucket: _Bucket) -> Iterator[Measure]:
    """Put the objects of one step, ready-made, by s3fs and by obstore: what the client costs."""
    from obstore.store import S3Store

    with setting.target(setting.fast) as store:
        with workers() as client:
            ingest(client, setting.load.directory, store)
        objects = {
            path.relative_to(store).as_posix(): path.read_bytes()
            for path in store.rglob("*")
            if path.is_file()
        }
    remote = S3Store(
        _BUCKET,
        endpoint=ceph.endpoint_url,
        access_key_id=ceph.access_key,
        secret_access_key=ceph.secret_key,
        region="default",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )

    def prefix(url: str) -> str:
        return url.removeprefix(f"s3://{_BUCKET}/")

    def one_by_one(url: str) -> None:
        ours = open_objects(resolve(url))
        for key, data in objects.items():
            ours.put(key, data)

    def one_by_one_obstore(url: str) -> None:
        for key, data in objects.items():
            remote.put(f"{prefix(url)}/{key}", data)

    def at_once(url: str) -> None:
        open_objects(resolve(url)).put_many(objects)

    def at_once_obstore(url: str) -> None:
        async def put_all() -> None:
            await asyncio.gather(
                *(remote.put_async(f"{prefix(url)}/{key}", data) for key, data in objects.items())
            )

        asyncio.run(put_all())

    contenders = {
        "one by one": (one_by_one, one_by_one_obstore),
        "at once": (at_once, at_once_obstore),
    }
    for how, (ours, other) in contenders.items():
        times = in_turns(
            setting.rounds,
            {
                "ours": lambda ours=ours: bucket.time(ours),  # type: ignore[misc]
                "other": lambda other=other: bucket.time(other),  # type: ignore[misc]
            },
        )
        name = f"put the {len(objects)} objects of a step, {how}"
        yield Measure(name, "obstore", "s", times["ours"], times["other"])


def _reading(bucket: _Bucket, write: Callable[[str], object]) -> Iterator[Measure]:
    """Count the requests for one small tensor, after the store and its index are open."""
    url = bucket.fresh()
    write(url)
    found = open_store(url)
    step = found.step(*found.keys[0].order[::-1])
    row = int(np.argmin(np.abs(step.tables.number("nbytes") - _SMALL_NBYTES)))
    requests: list[str] = []

    def count(model: Any, **_: Any) -> None:
        requests.append(model.name)

    events = bucket_client(url).meta.events
    events.register("before-call.s3", count)
    took = seconds(lambda: step.read(row))
    events.unregister("before-call.s3", count)
    assert requests
    yield Measure(
        "requests for a tensor of 4 KiB, S3",
        "3 requests",
        "requests",
        (len(requests),),
        (3.0,),
        Ratio.SHARE,
        floor=1.0,
    )
    yield Measure(
        "read a tensor of 4 KiB, S3, store open", "100 ms", "ms", (1e3 * took,), (100.0,), Ratio.SHARE
    )


def bucket_client(url: str) -> Any:
    """Return the client by which the object store at `url` is read: fsspec makes one for equal arguments."""
    files, _ = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return files.s3
