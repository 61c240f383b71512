"""How the failures of a backend become errors of the store, and how long a call may make no progress.

A network file system that is not available blocks its callers in the kernel, where nothing can interrupt
them, and a client of an object store may wait for a body for ever. So each call runs in a separate thread,
and a call that makes no progress, by a monotonic clock, is left to that thread.

Handing over a call costs more than a small write. Work that makes many calls is therefore handed over as a
whole, see `supervised`: its calls run where it runs, and only the calls have deadlines, not the work.
"""

from __future__ import annotations

import _thread
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, TypeVar

from workers.errors import OWNER_HINT, ClockSkewed, DumpIngestError, StoreDenied, StoreError, StoreUnavailable
from workers.store.model import StoreAddress
from workers.store.objects import UnfinishedUpload

T = TypeVar("T")


class _DelegatedCall:
    """What a helper does while somebody else waits for it: one call, or work that makes calls."""

    __slots__ = ("action", "arguments", "ended", "error", "progressed_at", "result")

    def __init__(self, action: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.action, self.arguments = action, arguments
        self.result: Any = None
        self.error: BaseException | None = None
        self.progressed_at = time.monotonic()
        # A bare lock: an `Event` takes as long as a small call.
        self.ended = _thread.allocate_lock()
        self.ended.acquire()

    def make(self) -> None:
        try:
            self.result = self.action(*self.arguments)
        except BaseException as exc:  # noqa: BLE001  (raised where it is waited for)
            self.error = exc

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class _SupervisedCall:
    __slots__ = ("late", "progressed_at", "timeout_s")

    def __init__(self, timeout_s: float, late: Callable[[float], Exception]) -> None:
        self.timeout_s, self.late = timeout_s, late
        self.progressed_at = time.monotonic()


class _SupervisedWork(_DelegatedCall):
    """Work that makes its calls itself, one after the other, while somebody watches how long each takes."""

    __slots__ = ("abandoned", "at", "ending")

    def __init__(self, action: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        super().__init__(action, arguments)
        self.at: _SupervisedCall | None = None
        """The call that the work is at."""
        self.abandoned: Exception | None = None
        """The error that the waiting caller got."""
        self.ending = False

    def call(self, call: _SupervisedCall, action: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        """Make a call; end the work if nobody waits for it any more."""
        self._end_if_abandoned()
        self.at = call
        try:
            result = action(*arguments)
        finally:
            self.at = None
        self._end_if_abandoned()
        return result

    def _end_if_abandoned(self) -> None:
        """Raise the error of the waiting caller once; later calls, which clean up, are made."""
        if self.abandoned is not None and not self.ending:
            self.ending = True
            raise self.abandoned


#: The call that this thread, or this task of an event loop, works for.
_CURRENT: ContextVar[_DelegatedCall | None] = ContextVar("dump_ingest_call", default=None)
#: How often supervised work is looked at, in seconds: a call that hangs is given up that much later at most.
_LOOK_S = 1.0


def made_progress() -> None:
    """Record that the call that this thread works for has moved on; nothing happens outside of a call."""
    call = _CURRENT.get()
    at = call.at if isinstance(call, _SupervisedWork) else call
    if at is not None:
        at.progressed_at = time.monotonic()


class _Helper:
    """A thread that makes one call after the other. A daemon: a process does not wait for it to end."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[_DelegatedCall] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="dump-ingest-store", daemon=True).start()

    def _run(self) -> None:
        while True:
            call = self.calls.get()
            _CURRENT.set(call)
            call.make()
            # An abandoned helper comes back, too, when its call has ended after all.
            _idle.append(self)
            call.ended.release()
            del call


_idle: list[_Helper] = []
os.register_at_fork(after_in_child=_idle.clear)


def _handed_over(call: _DelegatedCall) -> None:
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.calls.put(call)


def call_within(
    timeout_s: float,
    action: Callable[..., T],
    *arguments: object,
    late: Callable[[float], Exception],
) -> T:
    """Return `action(*arguments)`, or raise what it raises.

    Supervised work makes the call itself; otherwise a helper does, which costs 20 to 120 microseconds.

    Args:
        timeout_s: how long the call may go on without progress, see `made_progress`, in seconds.
        action: what to call.
        arguments: of the action.
        late: makes the exception that is raised after `timeout_s` without progress, which is its argument.
            The call is abandoned: the action goes on in its thread, and may still come to an end.
    """
    work = _CURRENT.get()
    if isinstance(work, _SupervisedWork):
        return work.call(_SupervisedCall(timeout_s, late), action, arguments)
    call = _DelegatedCall(action, arguments)
    _handed_over(call)
    while not call.ended.acquire(timeout=max(call.progressed_at + timeout_s - time.monotonic(), 0.001)):
        if time.monotonic() - call.progressed_at >= timeout_s:
            raise late(timeout_s)
    result: T = call.outcome()
    return result


def supervised(action: Callable[..., T], *arguments: object) -> T:
    """Return `action(*arguments)`, or raise what it raises; run it in a thread that makes its calls itself.

    What it does between its calls may take any time. If one of its calls makes no progress, what `late` of
    `call_within` returns is raised here, and in the abandoned thread if the call ends after all.
    """
    if isinstance(_CURRENT.get(), _SupervisedWork):
        return action(*arguments)
    work = _SupervisedWork(action, arguments)
    _handed_over(work)
    while not work.ended.acquire(timeout=_LOOK_S):
        call = work.at
        if call is not None and time.monotonic() - call.progressed_at >= call.timeout_s:
            work.abandoned = call.late(call.timeout_s)
            raise work.abandoned
    result: T = work.outcome()
    return result


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
        self._verb, self._address, self._key = verb, address, key

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Backends raise what they like (botocore, aiohttp, gcsfs...): here it all becomes one error.
        if isinstance(error, Exception) and not isinstance(error, DumpIngestError):
            raise _translate(error, f"{self._verb} {self._address.url.rstrip('/')}/{self._key}") from error


class Backend:
    """What all backends have in common: where objects are, and what only some of them have to do."""

    def __init__(self, address: StoreAddress, base: str) -> None:
        self.address = address
        self._base = base.rstrip("/")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.url!r})"

    def unfinished_uploads(self, prefix: str = "") -> list[UnfinishedUpload]:  # noqa: ARG002
        """Return none: uploads in parts do not exist, or cannot be listed."""
        return []

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Do nothing: `unfinished_uploads` never returns one."""

    def flush(self, prefix: str) -> None:
        """Do nothing: an object store that has acknowledged an object has it on its disks."""

    def prune(self, prefix: str) -> None:
        """Do nothing: an object store has no directories."""

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}" if key else self._base

    def _errors(self, verb: str, key: str) -> Translated:
        return Translated(verb, self.address, key)


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
