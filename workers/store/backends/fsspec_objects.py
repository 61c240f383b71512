"""Any file system of fsspec as store."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, ClassVar

import fsspec

from workers.errors import StoreUnavailable, UsageError
from workers.host.wording import counted
from workers.store.backends.failures import MISSING, Translated, reason_of
from workers.store.model import PROTOCOL_HINT, StoreAddress
from workers.store.objects import REQUESTS_AT_ONCE, StoredObject, UnfinishedUpload
from workers.store.pieces import Gathered, NewObject

#: The names under which file systems of fsspec report when an object was written.
_TIMES = ("LastModified", "mtime", "updated", "last_modified", "modified", "created")


class FsspecObjects:
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
        self.address = address
        options = self._client_options(json.loads(address.options))
        try:
            self._fs, base = fsspec.core.url_to_fs(address.url, **options)
        except (ValueError, ImportError, TypeError) as exc:
            raise UsageError(f"store {address.url}: {exc}", hint=PROTOCOL_HINT) from exc
        except OSError as exc:  # file systems that connect when they are made
            raise StoreUnavailable(f"store {address.url}: {reason_of(exc)}") from exc
        self._base = base.rstrip("/")
        self._batch_options = {"batch_size": REQUESTS_AT_ONCE} if self._fs.async_impl else {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.url!r})"

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Write one object."""
        with self._errors("write", key):
            # Clients of object stores are made for bytes: aiohttp warns about a large bytearray.
            self._fs.pipe_file(self._path(key), bytes(data), **self._write_options)

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Write several objects."""
        with self._errors("write", counted(len(objects), "object")):
            self._fs.pipe({self._path(key): data for key, data in objects.items()}, **self._batch_options)

    def create(self, key: str) -> NewObject:
        """Begin one object, which is gathered in memory."""
        return Gathered(lambda data: self.put(key, data))

    def get(self, key: str) -> bytes | None:
        """Return an object."""
        with self._errors("read", key), suppress(*MISSING):
            return bytes(self._fs.cat_file(self._path(key), **self._read_options))
        return None

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the named objects that exist."""
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
        """Return bytes `start` to `stop`."""
        with self._errors("read", key), suppress(*MISSING):
            return bytes(self._fs.cat_file(self._path(key), start=start, end=stop))
        return None

    def delete(self, key: str) -> None:
        """Remove one object."""
        with self._errors("delete", key), suppress(*MISSING):
            self._fs.rm_file(self._path(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove several objects, with one request for each."""
        with (
            self._errors("delete", counted(len(keys), "object")),
            ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="dump-ingest-delete") as threads,
        ):
            for _ in threads.map(self._delete_path, map(self._path, keys)):
                pass

    def children(self, prefix: str = "") -> list[str]:
        """Return the names one level below `prefix`."""
        with self._errors("list", prefix), suppress(*MISSING):
            paths = self._fs.ls(self._path(prefix), detail=False, refresh=True)
            return sorted({str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths} - {""})
        return []

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size of every object below `prefix`."""
        return {key: stored.nbytes for key, stored in self.listed(prefix).items()}

    def listed(self, prefix: str = "") -> dict[str, StoredObject]:
        """Return every object below `prefix`."""
        base = self._path(prefix)
        with self._errors("list", prefix):
            listing = self._fs.find(base, detail=True, refresh=True)
            return {
                str(path)[len(base) :].lstrip("/"): StoredObject(int(info["size"]), _modified_at(info))
                for path, info in listing.items()
            }

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:  # noqa: ARG002
        """Return none: uploads in parts do not exist, or cannot be listed."""
        return []

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Do nothing: `unfinished_uploads` never returns one."""

    def flush(self, prefix: str) -> None:
        """Do nothing: an object store that has acknowledged an object has it on its disks."""

    def prune(self, prefix: str) -> None:
        """Do nothing: an object store has no directories."""

    def _client_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of the file system for the options of the address."""
        return options

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}" if key else self._base

    def _errors(self, verb: str, key: str) -> Translated:
        return Translated(verb, self.address, key)

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
