"""A store or a cluster that does not answer: it is reported, and waited for or given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ingest.steps.events import DependencyDown
from workers.errors import ClusterError, StoreError, StoreUnavailable
from workers.events import Observer
from workers.store.backends.wrappers import Outage

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


#: After how many seconds without an answer of the store a small request is made: so a silent store is noticed
#: within a minute, even if there is nothing to do.
_LISTENS_S = 30.0


@dataclass(slots=True)
class Dependencies:
    """Store and cluster, as far as the service has to wait for them."""

    notify: Observer
    probe: StoreProbe
    retry_forever: bool = False
    """Whether to wait for what does not answer, rather than raise."""
    gives_up_s: float = 60.0
    """How long a store may be away for those who do not wait for ever, in seconds."""
    outage: Outage = field(default_factory=Outage)
    """Whether the store has fallen silent: it is asked by the probe alone then."""
    ask: Callable[[], object] = lambda: None
    """Reads something small from the store, for a bounded time, or raises StoreError."""
    clock: Callable[[], float] = time.monotonic
    _listened_at: float | None = None

    def tend(self) -> None:
        """Notice a store that has fallen silent, and have a silent one asked until it answers.

        Raises:
            StoreUnavailable: it was away for too long, and the service does not wait for ever.
        """
        if self.outage.error is not None:
            self.probe.report_failure(self.outage.error)
        else:
            now = self.clock()
            self._listened_at = now if self._listened_at is None else self._listened_at
            if now - max(self._listened_at, self.outage.answered_at) > _LISTENS_S:
                self._listened_at = now
                try:
                    self.ask()
                except StoreError as exc:
                    self.report(exc)
        error = self.probe.error
        if not self.retry_forever and error is not None and self.probe.away_s > self.gives_up_s:
            raise StoreUnavailable(
                f"{error.message}; gave up after {self.probe.away_s:.0f} s more", hint=error.hint
            )

    @property
    def is_store_silent(self) -> bool:
        """Whether the store has accepted a request without an answer, and has not answered since."""
        return self.outage.error is not None

    def endure(self, error: StoreError | ClusterError) -> None:
        """Report an error, so that the same is tried again; raise it unless everything is tried for ever."""
        if not self.retry_forever:
            raise error
        self.report(error)

    def report(self, error: StoreError | ClusterError) -> None:
        """Report an error; if the store did not answer, begin to ask when it is back."""
        self.probe.report_failure(error)
        self.notify(DependencyDown(error))
