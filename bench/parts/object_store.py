"""Ingesting into S3 object storage: Ceph with its gateway, in memory, on the same machine and cores."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from aiobotocore.client import AioBaseClient
from distributed import Client

from bench.measure import Measure, Ratio, Table, in_turns, seconds
from bench.setting import WORKERS, Setting, ingest, object_storage, workers
from bench.upload import bucket_client
from ingest.api import open_store
from tests.servers.ceph import PROGRAMS, CephS3
from workers.store.opening import open_objects, resolve

_BUCKET = "bench"
_SMALL_NBYTES = 4096


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield times and requests; only a note if Ceph is not installed."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        yield Table("S3: not measured", ("not installed",), tuple((name,) for name in missing))
        return
    with object_storage() as (ceph, _):
        ceph.make_bucket(_BUCKET)
        files = fsspec.filesystem("s3", **ceph.storage_options)
        with workers() as client:
            dump = setting.load.directory
            bucket = _Bucket(files)
            kept = bucket.fresh()
            ingest(client, dump, kept)
            one_in = 10 if setting.quick else 1
            with setting.target() as sample:
                scale = _linked(dump, sample, one_in)
                times = in_turns(
                    setting.rounds,
                    {
                        "ingest": lambda: bucket.time(lambda url: ingest(client, dump, url)),
                        "put": lambda: (
                            scale * bucket.time(lambda url: files.put(str(sample), url, recursive=True))
                        ),
                    },
                )
            against = "s3fs.put(recursive=True)" + (f" (1 file in {one_in}, scaled)" if one_in > 1 else "")
            name = f"ingest, {WORKERS} workers, S3"
            yield Measure(name, against, "s", times["ingest"], times["put"], floor=5.0)
            yield from _objects(setting, ceph, bucket, client)
            yield from _reading(kept)


def _linked(dump: Path, sample: Path, one_in: int) -> float:
    """Make a dump of every `one_in`-th file by size, as links; return the factor to scale its figures by."""
    files = sorted(dump.rglob("*.npy"), key=lambda path: (path.stat().st_size, path.name))
    chosen = files[one_in // 2 :: one_in]
    for path in chosen:
        link = sample / path.relative_to(dump)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.hardlink_to(path)
    return len(files) / len(chosen)


class _Bucket:
    """Gives each write its own prefix, and removes what was written."""

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


def _objects(setting: Setting, ceph: CephS3, bucket: _Bucket, client: Client) -> Iterator[Measure]:
    """Put ready-made objects of one step with s3fs and with obstore, to compare the costs of the clients."""
    with setting.target(setting.fast) as store:
        ingest(client, setting.load.directory, store)
        objects = {
            path.relative_to(store).as_posix(): path.read_bytes()
            for path in store.rglob("*")
            if path.is_file()
        }
    remote = bucket_client(ceph, _BUCKET)

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


def _reading(url: str) -> Iterator[Measure]:
    """Count the requests for one small tensor when the store and its index are open."""
    store = open_store(url)
    first = store.keys[0]
    step = store.step(first.rank, first.step)
    row = int(np.argmin(np.abs(step.tables.number("nbytes") - _SMALL_NBYTES)))
    with _counted() as requests:
        read_s = seconds(lambda: step.read(row))
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
        "read a tensor of 4 KiB, S3, store open", "100 ms", "ms", (1e3 * read_s,), (100.0,), Ratio.SHARE
    )


@contextmanager
def _counted() -> Iterator[list[str]]:
    """Yield a list to which each S3 request of this process adds its name."""
    names: list[str] = []
    original = AioBaseClient._make_api_call  # noqa: SLF001

    async def counting(client: Any, name: str, arguments: Any) -> Any:
        names.append(name)
        return await original(client, name, arguments)

    AioBaseClient._make_api_call = counting  # noqa: SLF001
    try:
        yield names
    finally:
        AioBaseClient._make_api_call = original  # noqa: SLF001
