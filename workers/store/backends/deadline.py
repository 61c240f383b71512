"""Calls that are waited for only as long as they make progress, by a monotonic clock.

A network file system that is not available blocks its callers in the kernel, where nothing can interrupt
them, and a client of an object store may wait for a body for ever. So each call runs in a separate thread,
and a call that makes no progress is left to that thread.

Handing over a call costs more than a small write. Work that makes many calls is therefore handed over as a
whole, see `supervised`: its calls run where it runs, and only the calls have deadlines, not the work.
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


def _no_answer(timeout_s: float) -> Exception:
    return NoAnswer(f"no answer for {timeout_s:.0f} s")


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
        """Return or raise what the action did, which has ended."""
        if self.error is not None:
            raise self.error
        return self.result


class _SupervisedCall:
    """One call that supervised work makes itself."""

    __slots__ = ("late", "progressed_at", "timeout_s")

    def __init__(self, timeout_s: float, late: Callable[[float], Exception]) -> None:
        self.timeout_s, self.late = timeout_s, late
        self.progressed_at = time.monotonic()

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.progressed_at >= self.timeout_s


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


def _handed_over(call: _DelegatedCall) -> None:
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.make(call)


def call_within(
    timeout_s: float,
    action: Callable[..., T],
    *arguments: object,
    late: Callable[[float], Exception] = _no_answer,
) -> T:
    """Return `action(*arguments)`, or raise what it raises.

    Supervised work makes the call itself; otherwise a helper does, which costs 20 to 120 microseconds.

    Args:
        timeout_s: how long the call may go on without progress, see `made_progress`, in seconds.
        action: what to call.
        arguments: of the action.
        late: makes the exception that is raised after `timeout_s` without progress, which is its argument. By
            default `NoAnswer`. The action goes on in its thread.
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
        if call is not None and call.is_late:
            work.abandoned = call.late(call.timeout_s)
            raise work.abandoned
    result: T = work.outcome()
    return result
