"""Stores behind a network: any file system of fsspec; and S3, through s3fs.

On S3, an object is one request, large ones go in parts, and many are deleted at once. Each answer is heard:
that it came, and the time that it tells.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, ClassVar

import fsspec

from workers import events
from workers.errors import StoreUnavailable, UsageError
from workers.model import MIB, counted
from workers.store.backends.failures import MISSING, Backend, made_progress, reason_of, seconds_ahead
from workers.store.model import PROTOCOL_HINT, StoreAddress
from workers.store.objects import (
    REQUESTS_AT_ONCE,
    Gathered,
    NewObject,
    StoreClockSeen,
    StoredObject,
    UnfinishedUpload,
)

#: The names under which file systems of fsspec report when an object was written.
_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")


class FsspecObjects(Backend):
    """Objects in a file system of fsspec, which must write each as a whole or not at all.

    Listings are asked for again each time: a cached one would hide what others have written since.
    """

    is_local = False
    tells_progress = False
    #: Further options of each read and of each write of one object.
    _read_options: ClassVar[Mapping[str, Any]] = {}
    _write_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, address: StoreAddress) -> None:
        """Prepare access to `address`; nothing is read or written yet.

        Raises:
            UsageError: the URL names an unknown protocol, or an option is unknown to it.
        """
        options = self._client_options(json.loads(address.options))
        try:
            self._fs, base = fsspec.core.url_to_fs(address.url, **options)
        except (ValueError, ImportError, TypeError) as exc:
            raise UsageError(f"store {address.url}: {exc}", hint=PROTOCOL_HINT) from exc
        except OSError as exc:  # file systems that connect when they are made
            raise StoreUnavailable(f"store {address.url}: {reason_of(exc)}") from exc
        super().__init__(address, base)
        self._batch_options = {"batch_size": REQUESTS_AT_ONCE} if self._fs.async_impl else {}

    def put(self, key: str, data: bytes | bytearray) -> None:
        with self._errors("write", key):
            # Clients of object stores are made for bytes: aiohttp warns about a large bytearray.
            self._fs.pipe_file(self._path(key), bytes(data), **self._write_options)

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        with self._errors("write", counted(len(objects), "object")):
            self._fs.pipe({self._path(key): data for key, data in objects.items()}, **self._batch_options)

    def create(self, key: str) -> NewObject:
        return Gathered(lambda data: self.put(key, data))

    def get(self, key: str) -> bytes | None:
        with self._errors("read", key), suppress(*MISSING):
            return bytes(self._fs.cat_file(self._path(key), **self._read_options))
        return None

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        if not keys:
            return {}
        with self._errors("read", keys[0]):
            # Not `cat`, which takes `*`, `?` and `[` in a path for a pattern.
            answers = self._fs.cat_ranges(
                [self._path(key) for key in keys],
                None,
                None,
                on_error="return",
                **self._batch_options,
                **self._read_options,
            )
            contents = {}
            for key, answer in zip(keys, answers, strict=True):
                if isinstance(answer, MISSING):
                    continue
                if isinstance(answer, Exception):
                    raise answer
                contents[key] = bytes(answer)
            return contents

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        with self._errors("read", key), suppress(*MISSING):
            return bytes(self._fs.cat_file(self._path(key), start=start, end=stop))
        return None

    def delete(self, key: str) -> None:
        with self._errors("delete", key):
            self._delete_path(self._path(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        with (
            self._errors("delete", counted(len(keys), "object")),
            ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="dump-ingest-delete") as threads,
        ):
            for _ in threads.map(self._delete_path, map(self._path, keys)):
                pass

    def children(self, prefix: str = "") -> list[str]:
        with self._errors("list", prefix), suppress(*MISSING):
            paths = self._fs.ls(self._path(prefix), detail=False, refresh=True)
            return sorted({str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths} - {""})
        return []

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return {key: stored.nbytes for key, stored in self.listed(prefix).items()}

    def listed(self, prefix: str = "") -> dict[str, StoredObject]:
        base = self._path(prefix)
        with self._errors("list", prefix):
            listing = self._fs.find(base, detail=True, refresh=True)
            return {
                str(path)[len(base) :].lstrip("/"): StoredObject(int(info["size"]), _modified_at(info))
                for path, info in listing.items()
            }

    def _client_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return options

    def _delete_path(self, path: str) -> None:
        with suppress(*MISSING):
            self._fs.rm_file(path)


def _modified_at(info: Mapping[str, Any]) -> float:
    """Return when an object was written; now if the listing does not tell, so that it never seems old."""
    value = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value) if isinstance(value, int | float) else time.time()


#: How often the time in the answers is compared with the clock of this host, in seconds.
_COMPARED_S = 10.0
_NAME = "_dump_ingest_listener"


class S3Listener:
    """Listens to the answers of one S3 client, refusals included."""

    def __init__(self) -> None:
        self._compared_at = float("-inf")

    @classmethod
    def attach(cls, file_system: Any) -> None:
        """Listen to a file system of s3fs that has not asked anything yet, unless somebody does."""
        if hasattr(file_system, _NAME) or file_system.session is not None:
            return
        from aiobotocore.session import AioSession  # deferred: with s3fs, which takes 0.4 s to import

        listener = cls()
        session = AioSession(**file_system.kwargs)
        session.register("response-received.s3", listener.receive)
        file_system.session = session
        setattr(file_system, _NAME, listener)

    def receive(self, response_dict: Mapping[str, Any] | None = None, **_: object) -> None:
        """Note an answer. Called by botocore for each attempt, in the task that waits for it."""
        if response_dict is None:
            return
        made_progress()
        now = time.monotonic()
        if now - self._compared_at >= _COMPARED_S:
            self._compared_at = now
            ahead_s = seconds_ahead(response_dict["headers"])
            if ahead_s is not None:
                events.emit(StoreClockSeen(ahead_s))


PROTOCOLS = ("s3://", "s3a://")
#: Objects of two parts or more go to S3 part by part, `_PARTS_AT_ONCE` at a time. That bounds the memory of
#: the client, and what is sent again after a fault. For smaller ones it only costs two more requests.
_PART_NBYTES = 32 * MIB
_PARTS_AT_ONCE = 2
#: What S3 deletes in one request, and how often a request is sent for objects that a busy gateway refuses.
_DELETED_AT_ONCE = 1000
_DELETE_ATTEMPTS = 3


#: How long to wait for a connection, and for the next bytes of an answer, in seconds; and how often a request
#: is sent, by botocore and around that by s3fs, which also asks again for a body that broke off. So a request
#: ends within 3 x 3 x 15 s and pauses, unless its deadline comes first. Left alone it would be 5 x 5.
_CONNECT_S, _READ_S = 5, 15
_ATTEMPTS = 3


class S3Objects(FsspecObjects):
    """Objects in a bucket of S3, or of a gateway that speaks its protocol."""

    tells_progress = True

    # s3fs asks for the size of an object in a separate request first, unless it is to fetch it in one.
    _read_options: ClassVar[Mapping[str, Any]] = {"max_concurrency": 1}
    _write_options: ClassVar[Mapping[str, Any]] = {
        "chunksize": _PART_NBYTES,
        "max_concurrency": _PARTS_AT_ONCE,
    }

    def __init__(self, address: StoreAddress) -> None:
        """Prepare access to `address`; nothing is read or written yet.

        Raises:
            UsageError: an option is unknown.
        """
        super().__init__(address)
        self._fs.retries = _ATTEMPTS
        S3Listener.attach(self._fs)

    def delete_many(self, keys: Sequence[str]) -> None:
        with self._errors("delete", counted(len(keys), "object")):
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                self._delete_at_once(keys[start : start + _DELETED_AT_ONCE])

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:
        """Return the uploads in parts below `prefix` that are not completed."""
        bucket, base, _ = self._fs.split_path(f"{self._path(prefix)}/")
        with self._errors("list the uploads of", prefix):
            pages = self._pages(
                "list_multipart_uploads", ("KeyMarker", "UploadIdMarker"), Bucket=bucket, Prefix=base
            )
            return [self._measured(bucket, upload) for page in pages for upload in page.get("Uploads", [])]

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """End an upload in parts."""
        bucket, key, _ = self._fs.split_path(self._path(upload.key))
        with self._errors("abort the upload of", upload.key), suppress(FileNotFoundError):
            self._fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.upload_id)

    def _pages(self, method: str, markers: tuple[str, ...], **arguments: str) -> Iterator[Mapping[str, Any]]:
        """Yield the pages of a listing, each of which says by `markers` where the next one begins."""
        page: Mapping[str, Any] = {"IsTruncated": True}
        begin: dict[str, Any] = {}
        while page.get("IsTruncated"):
            page = self._fs.call_s3(method, **arguments, **begin)
            yield page
            begin = {marker: page.get(f"Next{marker}", "") for marker in markers}

    def _measured(self, bucket: str, upload: Mapping[str, Any]) -> UnfinishedUpload:
        """Return an upload with the size of its parts; of one that has ended meanwhile, with none."""
        key, upload_id = str(upload["Key"]), str(upload["UploadId"])
        nbytes, written_at = 0, upload["Initiated"].timestamp()
        pages = self._pages("list_parts", ("PartNumberMarker",), Bucket=bucket, Key=key, UploadId=upload_id)
        with suppress(FileNotFoundError):
            for part in (part for page in pages for part in page.get("Parts", [])):
                nbytes += int(part["Size"])
                written_at = max(written_at, part["LastModified"].timestamp())
        _, base, _ = self._fs.split_path(f"{self._base}/")
        return UnfinishedUpload(key.removeprefix(base), upload_id, nbytes, written_at)

    def _client_options(self, options: dict[str, Any]) -> dict[str, Any]:
        # What a configuration file of fsspec sets for the client stays, unless an option sets it, too.
        configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        client = {
            "max_pool_connections": REQUESTS_AT_ONCE,
            "connect_timeout": _CONNECT_S,
            "read_timeout": _READ_S,
            "retries": {"total_max_attempts": _ATTEMPTS},
            **(options.get("config_kwargs") or configured),
        }
        if "AWS_REQUEST_CHECKSUM_CALCULATION" not in os.environ:
            # The checksums that botocore sends otherwise are sent as trailers over HTTPS, which Ceph and
            # others refuse. Our objects have checksums of their own.
            client.setdefault("request_checksum_calculation", "when_required")
        # Listings cached in this process would hide what others have written since.
        return {"use_listings_cache": False, **options, "config_kwargs": client}

    def _delete_at_once(self, keys: Sequence[str]) -> None:
        """Remove objects in one request. Not by `rm` of s3fs, which does not report what was refused."""
        bucket = self._fs.split_path(self._base)[0]
        left = [self._fs.split_path(self._path(key))[1] for key in keys]
        for _ in range(_DELETE_ATTEMPTS):
            request = {"Objects": [{"Key": key} for key in left], "Quiet": True}
            refused = self._fs.call_s3("delete_objects", Bucket=bucket, Delete=request).get("Errors", [])
            left = [refusal["Key"] for refusal in refused]
            if not left:
                return
            code, message = str(refused[0].get("Code", "")), str(refused[0].get("Message", ""))
            if code == "AccessDenied":
                raise PermissionError(f"{left[0]}: {code} {message}")
        raise OSError(f"{left[0]} and {len(left) - 1} more: {code} {message}")
