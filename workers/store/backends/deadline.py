"""Calls that are waited for only as long as they make progress, by a monotonic clock.

A network file system that has gone blocks its callers in the kernel, where nothing can interrupt them, and a
client of an object store may wait for a body for ever. So each call runs in a thread of its own, and a call
that makes no progress is left to that thread.
"""

from __future__ import annotations

import _thread
import os
import queue
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


class NoAnswer(TimeoutError):
    """The call went on for too long without progress. It was abandoned, and may still come to an end."""


class _DelegatedCall:
    """One call, which a helper makes and somebody else waits for."""

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


#: The call that this thread, or this task of an event loop, works for.
_CURRENT: ContextVar[_DelegatedCall | None] = ContextVar("dump_ingest_call", default=None)


def made_progress() -> None:
    """Record that the call that this thread works for has moved on; nothing happens outside of a call."""
    call = _CURRENT.get()
    if call is not None:
        call.progressed_at = time.monotonic()


class _Helper:
    """A thread that makes one call after the other. A daemon: a process does not wait for it to end."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_DelegatedCall] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="dump-ingest-store", daemon=True).start()

    def make(self, call: _DelegatedCall) -> None:
        self._calls.put(call)

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            _CURRENT.set(call)
            call.make()
            # An abandoned helper comes back, too, when its call has ended after all.
            _idle.append(self)
            call.ended.release()
            del call


_idle: list[_Helper] = []
os.register_at_fork(after_in_child=_idle.clear)


def call_within(timeout_s: float, action: Callable[..., T], *arguments: object) -> T:
    """Return `action(*arguments)`, or raise what it raises.

    About 20 microseconds more than a plain call.

    Args:
        timeout_s: how long the call may go on without progress, see `made_progress`, in seconds.
        action: what to call, in another thread.
        arguments: of the action.

    Raises:
        NoAnswer: there was no progress for that long. The action goes on in its thread.
    """
    call = _DelegatedCall(action, arguments)
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.make(call)
    while not call.ended.acquire(timeout=max(call.progressed_at + timeout_s - time.monotonic(), 0.001)):
        if time.monotonic() - call.progressed_at >= timeout_s:
            raise NoAnswer(f"no answer for {timeout_s:.0f} s")
    if call.error is not None:
        raise call.error
    result: T = call.result
    return result
