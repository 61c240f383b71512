"""How the failures of a backend become errors of the store."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType

from workers.errors import (
    OWNER_HINT,
    ClockSkewed,
    DumpIngestError,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from workers.store.model import StoreAddress

#: What reading or listing raises for a miss; the latter if a part of the key is an object itself.
MISSING = (FileNotFoundError, NotADirectoryError)
_MISSING_HINT = "Create the bucket, or correct the URL."
_SPACE_HINT = (
    "Nothing half done is visible; make room (`dump-ingest gc` removes old steps), and run the same command "
    "again."
)
#: What to do about errors of the operating system that do not pass by themselves.
_DISK_HINTS = {
    errno.ENOSPC: _SPACE_HINT,
    errno.EDQUOT: _SPACE_HINT,
    errno.EROFS: "Mount the file system so that it can be written, or name another store.",
    errno.EIO: "Nothing half done is visible; look for errors of the disk in the log of the kernel.",
}
_ENDPOINT_HINT = (
    "Check AWS_ENDPOINT_URL: http:// or https://, host and port. A service behind https without a known "
    "certificate needs AWS_CA_BUNDLE."
)
#: What botocore and TLS say of an endpoint that no other attempt reaches.
_ENDPOINT_WORDS = ("Invalid endpoint", "WRONG_VERSION_NUMBER", "CERTIFICATE_VERIFY_FAILED")
#: Exceptions of botocore that mean what `PermissionError` means.
_DENIED = frozenset(["NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"])
#: S3 refuses signatures that are so old, or so far in the future, in seconds.
_SKEW_REFUSED_S = 15 * 60


class Translated:
    """A block of code that accesses one object, and raises any error of the access as `StoreError`.

    A class, because a generator with `contextmanager` costs as much as writing a small file.
    """

    __slots__ = ("_address", "_key", "_verb")

    def __init__(self, verb: str, address: StoreAddress, key: str) -> None:
        """Name the object `key` of `address` in errors, after `verb`."""
        self._verb, self._address, self._key = verb, address, key

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the translated error, if the block raised one."""
        # Backends raise what they like (botocore, aiohttp, gcsfs...): here it all becomes one error.
        if isinstance(error, Exception) and not isinstance(error, DumpIngestError):
            raise _translate(error, f"{self._verb} {self._address.url.rstrip('/')}/{self._key}") from error


def _number_of_system(exc: Exception) -> int | None:
    """Return the `errno` of an error of the operating system, in whose words it is told; None for others."""
    if not isinstance(exc, OSError) or exc.errno is None or exc.strerror != os.strerror(exc.errno):
        return None
    return exc.errno


def _translate(exc: Exception, action: str) -> StoreError:
    if isinstance(exc, MISSING):
        return StoreUnavailable(f"cannot {action}: no such bucket or directory", hint=_MISSING_HINT)
    if (skewed := _as_skewed(exc, action)) is not None:
        return skewed
    is_denied = isinstance(exc, PermissionError) or type(exc).__name__ in _DENIED
    kind = StoreDenied if is_denied else StoreUnavailable
    if (number := _number_of_system(exc)) is not None:
        # The file that it names is a temporary one, and the object is named already.
        hint = OWNER_HINT if is_denied else _DISK_HINTS.get(number)
        return kind(f"cannot {action}: {os.strerror(number)}", hint=hint)
    reason = reason_of(exc)
    is_endpoint = any(words in reason for words in _ENDPOINT_WORDS)
    return kind(f"cannot {action}: {reason}", hint=_ENDPOINT_HINT if is_endpoint else None)


def _as_skewed(exc: Exception, action: str) -> ClockSkewed | None:
    """Return the error for a refusal of S3 because of the clocks, with both times; None for another one."""
    response = getattr(exc if hasattr(exc, "response") else exc.__cause__, "response", None)
    if not isinstance(response, Mapping):
        return None
    code = response.get("Error", {}).get("Code")
    ahead_s = seconds_ahead(response.get("ResponseMetadata", {}).get("HTTPHeaders", {}))
    # An answer to HEAD has no body that would say why.
    if code != "RequestTimeTooSkewed" and not (code == "403" and abs(ahead_s or 0.0) > _SKEW_REFUSED_S):
        return None
    here = datetime.now(UTC)
    if ahead_s is None:
        return ClockSkewed(f"cannot {action}: the store refuses the time, {here:%Y-%m-%d %H:%M:%S} UTC")
    there = here - timedelta(seconds=ahead_s)
    which = "ahead" if ahead_s > 0 else "behind"
    return ClockSkewed(
        f"cannot {action}: here it is {here:%Y-%m-%d %H:%M:%S} UTC, at the store {there:%Y-%m-%d %H:%M:%S}: "
        f"the clock of this host is {abs(ahead_s):.0f} s {which}"
    )


def reason_of(exc: BaseException) -> str:
    """Return the type and the text of an exception in one line of bounded length."""
    return " ".join(f"{type(exc).__name__}: {exc}".split())[:300]


def seconds_ahead(headers: Mapping[str, str]) -> float | None:
    """Return how far the clock of this host is ahead of the time in the headers of an answer that just came.

    None if they do not tell it. Less than a second and a half counts as none: the time is in whole seconds.
    """
    text = headers.get("date") or headers.get("Date")
    try:
        ahead_s = time.time() - parsedate_to_datetime(text or "").timestamp()
    except ValueError:
        return None
    return 0.0 if -0.5 <= ahead_s <= 1.5 else round(ahead_s, 1)
