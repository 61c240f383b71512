"""How the failures of a backend become errors of the store."""

from __future__ import annotations

from types import TracebackType

from workers.errors import DumpIngestError, StoreDenied, StoreError, StoreUnavailable
from workers.store.model import StoreAddress

_MISSING_HINT = "Create the bucket, or correct the URL."
_OWNER_HINT = "Check owner and mode of the file and of the directories above it."
#: Exceptions of botocore that mean what `PermissionError` means.
_DENIED = frozenset(["NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"])


class Translated:
    """A block that does one thing to one object, and raises whatever goes wrong there as `StoreError`.

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


def _translate(exc: Exception, action: str) -> StoreError:
    if isinstance(exc, FileNotFoundError | NotADirectoryError):
        return StoreUnavailable(f"cannot {action}: no such bucket or directory", hint=_MISSING_HINT)
    is_denied = isinstance(exc, PermissionError) or type(exc).__name__ in _DENIED
    kind = StoreDenied if is_denied else StoreUnavailable
    if is_denied and isinstance(exc, OSError) and exc.filename and exc.strerror:  # a directory as store
        return StoreDenied(f"cannot {action}: {exc.strerror}", hint=_OWNER_HINT)
    return kind(f"cannot {action}: {reason_of(exc)}")


def reason_of(exc: BaseException) -> str:
    """Return the type and the text of an exception in one line of bounded length."""
    return " ".join(f"{type(exc).__name__}: {exc}".split())[:300]
