"""When a store that was away is back: asked for in a thread, so that nothing else waits for its timeouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.errors import StoreError, StoreUnavailable

#: How long after an answer that did not come the store is asked again.
_PAUSE_S = 1.0


@dataclass(slots=True)
class StoreProbe:
    """Asks a store that failed whether it answers, until it does.

    Work that failed waits longer and longer, so as not to burden a store in distress; without this, it would
    go on waiting long after the store is back.
    """

    ask: Callable[[], object]
    """Reads something small from the store, or raises StoreError."""
    pause_s: float = _PAUSE_S
    clock: Callable[[], float] = time.monotonic
    away_since: float | None = None
    """By the monotonic clock: since when the store has failed; None if it answers."""
    error: StoreUnavailable | None = None
    """What it failed with first."""
    _over: threading.Event = field(default_factory=threading.Event)
    _pause: threading.Event = field(default_factory=threading.Event)
    """Never set: to wait for it is to sleep. `time.sleep` fails where a clock is moved under a process."""
    _thread: threading.Thread | None = None

    @property
    def away_s(self) -> float:
        """For how long the store has failed; 0 if it answers."""
        since = self.away_since
        return 0.0 if since is None else self.clock() - since

    def report_failure(self, error: Exception) -> None:
        """Begin to ask, if this error says that the store did not answer and nobody asks yet."""
        if not isinstance(error, StoreUnavailable) or (self._thread is not None and self._thread.is_alive()):
            return
        self.away_since, self.error = self.clock(), error
        self._thread = threading.Thread(target=self._ask, name="outage", daemon=True)
        self._thread.start()

    def poll_recovered(self) -> bool:
        """Return whether the store was away and is back since; true once for each time."""
        if not self._over.is_set():
            return False
        self._over.clear()
        return True

    def _ask(self) -> None:
        started = time.monotonic()
        while True:
            try:
                self.ask()
            except StoreUnavailable:
                self._pause.wait(self.pause_s)
            except StoreError:
                self.away_since = None
                return  # it answers, and waiting does not help
            else:
                break
        self.away_since = None
        # A store that answers at once may refuse writes, or be too busy for them: then pauses are right.
        # Clients ask again by themselves, so an answer that took long did not come at first.
        if time.monotonic() - started >= self.pause_s:
            self._over.set()
