"""The object seam: the few operations on a bucket or a directory that the store is built from.

One class over fsspec. Every failure leaves as a `StoreError`, so callers never see what backend it was.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from workers import events
from workers.errors import StoreDenied, StoreError, StoreUnavailable, UsageError
from workers.model import MIB
from workers.store.events import StoreRequested
from workers.store.model import StoreAddress
from workers.store.pieces import Gathered, NewFile, NewObject

T = TypeVar("T")

#: Requests on their way at once. An object store answers each after tens of milliseconds, so one after the
#: other ten thousand small objects would take minutes.
REQUESTS_AT_ONCE = 32
#: Objects of two parts or more go to S3 part by part, `_PARTS_AT_ONCE` at a time. Below, it gains nothing and
#: costs two requests more; above, it bounds the memory of the client, and what is sent again after a fault.
_PART_NBYTES = 32 * MIB
_PARTS_AT_ONCE = 2
#: What S3 deletes in one request, and requests that are sent again for objects that a busy gateway refused.
_DELETED_AT_ONCE = 1000
_DELETE_ATTEMPTS = 3
#: Under which name a backend says when an object was written.
_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")
_SECRET_WORDS = ("secret", "password", "token", "key")
#: Names a key of the key management service; it is of no use to a thief.
_NOT_SECRET = frozenset(["SSEKMSKeyId"])


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a listing says of an object."""

    nbytes: int
    modified_at: float
    """When it was written, in seconds since the epoch, by the clock of the store."""


class ObjectStore:
    """Objects under one URL, named by `/`-separated keys. Safe to share between threads, not across forks."""

    def __init__(self, address: StoreAddress) -> None:
        """Prepare access to `address`; nothing is read or written yet.

        Raises:
            UsageError: the URL names an unknown protocol, or the options hold a secret.
        """
        self.address = address
        options: dict[str, Any] = json.loads(address.options)
        is_s3 = address.url.startswith(("s3://", "s3a://"))
        if is_s3:
            options = _s3_options(options)
        try:
            self._fs, self._base = fsspec.core.url_to_fs(address.url, **options)
        except (ValueError, ImportError, TypeError) as exc:
            raise UsageError(f"store {address.url}: {exc}", hint=_PROTOCOL_HINT) from exc
        except OSError as exc:  # backends that connect when they are made
            raise StoreUnavailable(f"store {address.url}: {_reason(exc)}") from exc
        self._base = self._base.rstrip("/")
        protocol = self._fs.protocol
        self._is_s3 = is_s3
        self._local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)
        # s3fs asks for the size of an object first, in a request of its own, unless told to fetch it in one.
        self._one_request = {"max_concurrency": 1} if is_s3 else {}
        self._in_parts = {"chunksize": _PART_NBYTES, "max_concurrency": _PARTS_AT_ONCE} if is_s3 else {}
        self._at_once = {"batch_size": REQUESTS_AT_ONCE} if self._fs.async_impl else {}

    def __repr__(self) -> str:
        return f"ObjectStore({self.address.url!r})"

    @property
    def is_local(self) -> bool:
        """Whether this is a directory: the machine itself writes, and nothing is gained by waiting less."""
        return self._local

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Write one object, replacing any of that name: all or nothing, and there when this returns.

        Sent again after faults that pass, with growing pauses: s3fs and botocore see to that.
        """
        with self._wrapped("put", key):
            if self._local:
                self._put_local(key, data)
            else:
                # Clients of object stores are made for bytes: aiohttp warns of a large bytearray.
                self._fs.pipe_file(self._path(key), bytes(data), **self._in_parts)

    def create(self, key: str) -> NewObject:
        """Begin one object that comes in pieces; as by `put`, there is none of it before it is closed.

        Memory: in a directory none of it, else all of it, twice.
        """
        if self._local:
            return _InDirectory(self, key)
        return Gathered(lambda data: self.put(key, data))

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Write several objects, each as by `put`, in no order; `REQUESTS_AT_ONCE` where possible."""
        if self._local:
            for key, data in objects.items():
                self.put(key, data)
            return
        with self._wrapped("put_many", f"{len(objects)} objects"):
            self._fs.pipe({self._path(key): data for key, data in objects.items()}, **self._at_once)

    def get(self, key: str) -> bytes | None:
        """Return an object, or None when there is none of that name."""
        with self._wrapped("get", key):
            try:
                return bytes(self._fs.cat_file(self._path(key), **self._one_request))
            except FileNotFoundError:
                return None

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return those of the named objects that exist; `REQUESTS_AT_ONCE` where possible."""
        if not keys:
            return {}
        with self._wrapped("get_many", keys[0]):
            # Not `cat`, which takes `*`, `?` and `[` in a path for a pattern.
            paths = [self._path(key) for key in keys]
            found = self._fs.cat_ranges(
                paths, None, None, on_error="return", **self._at_once, **self._one_request
            )
            results = {}
            for key, value in zip(keys, found, strict=True):
                if isinstance(value, FileNotFoundError):
                    continue
                if isinstance(value, Exception):
                    raise value
                results[key] = bytes(value)
            return results

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        """Return bytes `start` to `stop`; a negative `start` counts from the end. None when absent."""
        with self._wrapped("get", key):
            try:
                return bytes(self._fs.cat_file(self._path(key), start=start, end=stop))
            except FileNotFoundError:
                return None

    def flush(self, prefix: str) -> None:
        """Have the disk hold an object, or every object below `prefix`, and the names that lead to it.

        What `put` wrote to a directory is in the memory of the machine for some seconds, and a power cut
        takes it. An object store that has acknowledged an object needs no flush: then nothing is done.
        """
        if not self._local:
            return
        base = self._path(prefix)
        try:
            for directory, _, names in os.walk(base):
                for path in (*(f"{directory}/{name}" for name in names), directory):
                    _fsync(path)
            if not os.path.isdir(base):  # noqa: PTH112
                _fsync(base)
            while base != self._base:
                base = base.rpartition("/")[0]
                _fsync(base)
        except OSError as exc:
            raise self._as_error(exc, f"flush {self._name(prefix)}") from exc

    def delete(self, key: str) -> None:
        """Remove one object; nothing happens when there is none."""
        with self._wrapped("delete", key):
            try:
                self._fs.rm_file(self._path(key))
            except FileNotFoundError:
                return

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove several objects, in no order; as on `delete`, some of them may be gone already.

        On S3 a thousand in one request. Directories that become empty stay; see `prune`.
        """
        if not keys:
            return
        with self._wrapped("delete", f"{len(keys)} objects"):
            if self._is_s3:
                for start in range(0, len(keys), _DELETED_AT_ONCE):
                    self._delete_on_s3(keys[start : start + _DELETED_AT_ONCE])
                return
            with ThreadPoolExecutor(1 if self._local else REQUESTS_AT_ONCE) as threads:
                for _ in threads.map(self._delete_one, map(self._path, keys)):
                    pass

    def prune(self, prefix: str) -> None:
        """Remove directories without a file in them, `prefix` included: listings name them, too.

        There are none but in a directory as store. Whoever is about to write makes them again.
        """
        if not self._local or not prefix or self._is_behind_link(prefix):
            return
        for directory, _, files in os.walk(self._path(prefix), topdown=False):
            if not files:
                with suppress(OSError):  # not empty, or gone already
                    os.rmdir(directory)  # noqa: PTH106

    def children(self, prefix: str = "") -> list[str]:
        """Return the names one level below `prefix`, sorted; empty when there is nothing."""
        with self._wrapped("list", prefix):
            try:
                if self._local:
                    # fsspec asks for the kind and the times of each, which takes ten times as long.
                    return sorted(os.listdir(self._path(prefix)))  # noqa: PTH208
                found = self._fs.ls(self._path(prefix), detail=False, **self._refresh())
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted({str(path).rstrip("/").rsplit("/", 1)[-1] for path in found} - {""})

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size in bytes of every object below `prefix`, by key relative to it."""
        base = self._path(prefix)
        with self._wrapped("list", prefix):
            found = self._fs.find(base, detail=True, **self._refresh())
        return {str(path)[len(base) :].lstrip("/"): int(info["size"]) for path, info in found.items()}

    def listed(self, prefix: str = "") -> dict[str, StoredObject]:
        """Return what there is below `prefix`, by key relative to it, with sizes and times; "" for itself.

        In a directory, symbolic links are named and not followed; behind one, nothing is listed.
        """
        base = self._path(prefix)
        with self._wrapped("list", prefix):
            if self._local:
                return {} if self._is_behind_link(prefix) else dict(_walk(base))
            found = self._fs.find(base, detail=True, **self._refresh())
        return {
            str(path)[len(base) :].lstrip("/"): StoredObject(int(info["size"]), _modified_at(info))
            for path, info in found.items()
        }

    def _is_behind_link(self, key: str) -> bool:
        """Whether a part of a key is a symbolic link. The directory of the store itself may be one."""
        parts = key.split("/") if key else []
        return any(os.path.islink(self._path("/".join(parts[:n]))) for n in range(1, len(parts) + 1))  # noqa: PTH114

    def _delete_on_s3(self, keys: Sequence[str]) -> None:
        """Remove objects in one request. Not by `rm`, which keeps quiet about what was refused."""
        bucket = self._fs.split_path(self._base)[0]
        left = [self._fs.split_path(self._path(key))[1] for key in keys]
        for _ in range(_DELETE_ATTEMPTS):
            asked = {"Objects": [{"Key": key} for key in left], "Quiet": True}
            refused = self._fs.call_s3("delete_objects", Bucket=bucket, Delete=asked).get("Errors", [])
            left = [one["Key"] for one in refused]
            if not left:
                return
            code, message = str(refused[0].get("Code", "")), str(refused[0].get("Message", ""))
            if code == "AccessDenied":
                raise PermissionError(f"{left[0]}: {code} {message}")
        raise OSError(f"{left[0]} and {len(left) - 1} more: {code} {message}")

    def _delete_one(self, path: str) -> None:
        with suppress(FileNotFoundError):
            if self._local:
                os.unlink(path)  # noqa: PTH108
            else:
                self._fs.rm_file(path)

    def _refresh(self) -> dict[str, Any]:
        return {} if self._local else {"refresh": True}

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}" if key else self._base

    def _put_local(self, key: str, data: bytes | bytearray) -> None:
        file = NewFile(self._path(key))
        try:
            file.write(data)
            file.close()
        except BaseException:
            file.drop()
            raise

    @contextmanager
    def _wrapped(self, op: str, key: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        except UsageError:
            raise
        except Exception as exc:
            error = self._as_error(exc, f"{_VERBS[op]} {self._name(key)}")
            events.emit(StoreRequested(op, time.perf_counter() - started, error))
            if error is exc:
                raise
            raise error from exc
        events.emit(StoreRequested(op, time.perf_counter() - started))

    def _as_error(self, exc: Exception, what: str) -> StoreError:
        """Return what a backend raised as one of our errors."""
        if isinstance(exc, StoreError):
            return exc
        if isinstance(exc, FileNotFoundError | NotADirectoryError):
            return StoreUnavailable(f"cannot {what}: no such bucket or directory", hint=_MISSING_HINT)
        # Backends raise what they like (botocore, aiohttp, gcsfs...): here it all becomes one error.
        is_denied = isinstance(exc, PermissionError) or type(exc).__name__ in _DENIED
        kind = StoreDenied if is_denied else StoreUnavailable
        return kind(f"cannot {what}: {_reason(exc)}")

    def _name(self, key: str) -> str:
        return f"{self.address.url.rstrip('/')}/{key}"


class _InDirectory:
    """A new object of a store that is a directory."""

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects, self._key = objects, key
        self._spent_s = 0.0
        self._file = self._do(lambda: NewFile(objects._path(key)))  # noqa: SLF001

    def write(self, piece: bytes | bytearray) -> None:
        self._do(lambda: self._file.write(piece))

    def close(self) -> None:
        self._do(self._file.close)
        events.emit(StoreRequested("put", self._spent_s))

    def drop(self) -> None:
        self._file.drop()

    def _do(self, step: Callable[[], T]) -> T:
        # All of it is one request, which lasts as long as what is done of it.
        started = time.perf_counter()
        try:
            done = step()
        except Exception as exc:
            error = self._objects._as_error(exc, f"write {self._objects._name(self._key)}")  # noqa: SLF001
            events.emit(StoreRequested("put", self._spent_s + time.perf_counter() - started, error))
            raise error from exc
        self._spent_s += time.perf_counter() - started
        return done


def _walk(base: str) -> Iterator[tuple[str, StoredObject]]:
    """Yield every file below a directory. Its own loop: fsspec takes five times as long."""
    left = [""]
    while left:
        prefix = left.pop()
        try:
            entries = os.scandir(f"{base}/{prefix}")
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            with suppress(FileNotFoundError):
                found = os.lstat(base)
                yield "", StoredObject(found.st_size, found.st_mtime)
            continue
        with entries:
            for entry in entries:
                name = f"{prefix}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    left.append(f"{name}/")
                    continue
                with suppress(FileNotFoundError):  # gone since it was listed
                    found = entry.stat(follow_symlinks=False)
                    yield name, StoredObject(found.st_size, found.st_mtime)


def _modified_at(info: Mapping[str, Any]) -> float:
    """Return when an object was written; now where the backend does not say, so that it never seems old."""
    value = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value) if isinstance(value, int | float) else time.time()


def _fsync(path: str) -> None:
    try:
        # Nobody hangs at a pipe that somebody put there: the disk refuses to flush it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return  # a temporary file of somebody who writes
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _s3_options(options: dict[str, Any]) -> dict[str, Any]:
    # What a configuration file of fsspec says of the client stays, unless an option says otherwise.
    configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    client = {"max_pool_connections": REQUESTS_AT_ONCE, **(options.get("config_kwargs") or configured)}
    if "AWS_REQUEST_CHECKSUM_CALCULATION" not in os.environ:
        # The checksums that botocore sends otherwise are sent as trailers over HTTPS, which Ceph and others
        # refuse. Our objects have checksums of their own.
        client.setdefault("request_checksum_calculation", "when_required")
    # Listings cached in this process would hide what others have written since.
    return {"use_listings_cache": False, **options, "config_kwargs": client}


_VERBS = {
    "get": "read",
    "get_many": "read",
    "put": "write",
    "put_many": "write",
    "delete": "delete",
    "list": "list",
}
_MISSING_HINT = "Make the bucket, or correct the URL."
_PROTOCOL_HINT = "Use a directory, or a URL that fsspec knows, such as s3://bucket/prefix."
_TORN_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")
_DENIED = frozenset(["NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"])


def _reason(exc: BaseException) -> str:
    return " ".join(f"{type(exc).__name__}: {exc}".split())[:300]


def resolve(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> StoreAddress:
    """Turn what a user typed into an address: a URL as it is, anything else an absolute directory.

    Raises:
        UsageError: `url` names nothing, or `options` hold a credential, which belongs into the environment.
    """
    url = os.fspath(url)
    protocol, is_url, rest = url.partition("://")
    # As paths, these would name a local directory; `s3://$UNSET` is no rare mistake.
    if not url or (is_url and not rest.strip("/")) or (not is_url and _TORN_URL.match(url)):
        raise UsageError(f"store {url!r} names no place", hint=_PROTOCOL_HINT)
    for name in _names(options or {}):
        if any(word in name.lower() for word in _SECRET_WORDS) and name not in _NOT_SECRET:
            raise UsageError(
                f"store option {name!r} looks like a credential",
                hint="Put credentials into the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...): options "
                "are sent to the Dask workers and shown by `dump-ingest config show`.",
            )
    frozen = json.dumps(dict(options or {}), sort_keys=True)
    if protocol in {"file", "local"} and is_url:
        url = rest  # a relative one means a directory of this process, not of each worker
    elif is_url or "::" in url:
        return StoreAddress(url.rstrip("/"), frozen)
    return StoreAddress(str(Path(url).expanduser().absolute()), frozen)


def _names(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all options, and of the options in them, such as those of `client_kwargs`."""
    for name, value in options.items():
        yield name
        if isinstance(value, Mapping):
            yield from _names(value)


@lru_cache(maxsize=16)
def open_objects(address: StoreAddress) -> ObjectStore:
    """Return the `ObjectStore` of `address`, made once per process."""
    return ObjectStore(address)
