"""What is read from elsewhere for all viewers, again and again while somebody asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from workers.errors import StoreError

Value = TypeVar("Value")
#: How long somebody who comes after a while waits for a new value, in seconds.
_PATIENCE_S = 2.0
#: What takes longer than this to answer counts as away, in seconds.
_SLOW_S = 10.0
#: How long an error stands at most if nothing was ever read: until then, viewers are told the same.
_RETRY_S = 3.0


@dataclass(eq=False)
class Refreshed(Generic[Value]):
    """A value that is read again when it is asked for and older than `refresh_s`.

    It is read in a thread of its own, once for all viewers, who get the value before until that is done. Only
    who comes after a while in which nobody looked waits a little. If a store cannot be read, what was read
    before stays.
    """

    read: Callable[[Value | None], Value]
    """Takes the value before; None for the first."""
    refresh_s: float
    clock: Callable[[], float] = time.monotonic
    then: Callable[[Value], object] = lambda _: None
    """Called with the first value once viewers have it, in the thread that read it."""
    known: Value | None = None
    is_settled: bool = False
    """Whether the first value was read and `then` has ended, or it could not be read."""
    _trouble: str = ""
    """Why it could not be read the last time; "" if it could."""
    _asked_at: float = 0.0
    _read_at: float = 0.0
    _reading: Future[Value] | None = None
    """The newest value, perhaps to come; None before the first time."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, *, is_due: bool = False) -> Future[Value]:
        """Begin to read it if it is time to, or if it `is_due`; return the newest value, perhaps to come."""
        with self._lock:
            reading = self._reading
            pause_s = min(self.refresh_s, _RETRY_S) if self.known is None else self._pause_s
            is_old = is_due or self.clock() - self._read_at >= pause_s
            if reading is None or (reading.done() and is_old):
                reading = self._reading = Future()
                self._asked_at = self.clock()
                # A daemon: what hangs does not keep the server from ending.
                given = (self.known, reading)
                threading.Thread(target=self._read, args=given, name="dump-ingest-read", daemon=True).start()
            return reading

    def now(self) -> Value:
        """Return the value, or what was read before if that is newest; raise what ended the first reading."""
        known, begun = self.known, self.begin()
        if known is None:
            return begun.result()
        if self.clock() - self._read_at >= 2 * self._pause_s:
            # Nobody has looked for a while, or it hangs: no longer than this after it was asked.
            wait([begun], max(self._asked_at + _PATIENCE_S - self.clock(), 0))
        return begun.result() if begun.done() else known

    @property
    def trouble(self) -> str:
        """Why it could not be read the last time, or has not been read yet; "" if it could."""
        reading = self._reading
        is_open = self.known is not None and reading is not None and not reading.done()
        if is_open and self.clock() - self._asked_at > _SLOW_S:
            return self._trouble or f"no answer for more than {_SLOW_S:g} s"
        return self._trouble

    @property
    def _pause_s(self) -> float:
        """How long it is left alone: the longer, the longer it took to answer."""
        return self.refresh_s * max(1.0, self._read_at - self._asked_at)

    def _read(self, known: Value | None, reading: Future[Value]) -> None:
        try:
            value = self.read(known)
        except StoreError as exc:
            self._settle(known, exc.message)
            if known is None:
                reading.set_exception(exc)
            else:
                reading.set_result(known)
        except BaseException as exc:  # noqa: BLE001  (whoever asked gets it)
            self._settle(known, "")
            reading.set_exception(exc)
        else:
            self._settle(value, "")
            reading.set_result(value)
            if known is None:
                self.then(value)
        finally:
            self.is_settled = True

    def _settle(self, value: Value | None, trouble: str) -> None:
        with self._lock:
            self.known, self._trouble, self._read_at = value, trouble, self.clock()
            if trouble:  # it took the time of timeouts, which says nothing about the store
                self._asked_at = self._read_at
