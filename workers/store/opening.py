"""From what a user typed as the place of a store to its address, and from an address to its objects."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from workers.errors import UsageError
from workers.host.credentials import refuse_in_options, refuse_in_url
from workers.host.paths import absolute
from workers.store.backends.local import LocalObjects
from workers.store.backends.wrappers import BoundedObjects, ObservedObjects
from workers.store.model import PROTOCOL_HINT, STORE_TIMEOUT_S, StoreAddress
from workers.store.objects import ObjectStore

#: The setting `store_timeout_s`, for those who open a store without settings.
TIMEOUT_VARIABLE = "DUMP_INGEST_STORE_TIMEOUT_S"
_LOCAL_PROTOCOLS = ("file", "local")
_TORN_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")


def resolve(
    url: str | os.PathLike[str], options: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
) -> StoreAddress:
    """Turn what a user typed into an address: a URL as it is, anything else an absolute directory.

    Args:
        url: what the user typed.
        options: for fsspec.
        timeout_s: how long a request may go on without progress, in seconds; default: what the variable
            `DUMP_INGEST_STORE_TIMEOUT_S` says, else a minute.

    Raises:
        UsageError: `url` names no place; or it, or `options`, hold a credential: those belong into the
            environment.
    """
    url = os.fspath(url)
    refuse_in_url(url)
    _refuse_torn(url)
    refuse_in_options(options or {})
    timeout_s = _default_timeout() if timeout_s is None else timeout_s
    frozen = json.dumps(dict(options or {}), sort_keys=True)
    protocol, is_url, path = url.partition("://")
    if is_url and protocol in _LOCAL_PROTOCOLS:
        url = path
    elif is_url or "::" in url:
        return StoreAddress(url.rstrip("/"), frozen, timeout_s)
    # Absolute: a relative one means a directory of this process, not of each worker.
    return StoreAddress(str(absolute(Path(url))), frozen, timeout_s)


def _default_timeout() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        timeout_s = float(text or STORE_TIMEOUT_S)
    except ValueError:
        timeout_s = 0.0
    if not timeout_s > 0:
        raise UsageError(f"{TIMEOUT_VARIABLE} must be a number of seconds above 0, got {text!r}")
    return timeout_s


def _refuse_torn(url: str) -> None:
    """Raise UsageError for a broken URL, such as `s3://$UNSET`: as a path it would name a directory."""
    _, is_url, rest = url.partition("://")
    if not url or (is_url and not rest.strip("/")) or (not is_url and _TORN_URL.match(url)):
        raise UsageError(f"store {url!r} names no place", hint=PROTOCOL_HINT)


def connect(address: StoreAddress) -> ObjectStore:
    """Return access to the objects at an address, each request of which is bounded and observed.

    A request that makes no progress for the time of the address raises StoreSilent.

    Raises:
        UsageError: the URL names an unknown protocol, or an option is unknown to it.
        StoreUnavailable: the protocol connects at once, and cannot.
    """
    return ObservedObjects(BoundedObjects(_backend(address), address.timeout_s))


def _backend(address: StoreAddress) -> ObjectStore:
    if "://" not in address.url and "::" not in address.url:
        return LocalObjects(address)
    from workers.store.backends import remote  # deferred: fsspec takes 0.05 s, and a directory needs none

    is_s3 = address.url.startswith(remote.PROTOCOLS)
    return remote.S3Objects(address) if is_s3 else remote.FsspecObjects(address)


@lru_cache(maxsize=16)
def open_objects(address: StoreAddress) -> ObjectStore:
    """Return access to the objects at an address as `connect` does, made once per process."""
    return connect(address)
