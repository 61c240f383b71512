"""The overviews of all runs of a list: read in the background, while somebody looks at the list."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.pool import ThreadPool

import xxhash

from ingest.page.overview import Overview

#: Runs that are read at once.
_THREADS = 4
#: The list is left alone for at least this many times the time that reading it took.
_REST = 10


@dataclass(frozen=True, slots=True)
class ListMoment:
    """What is known of the runs of a list."""

    runs: Mapping[str, Overview | None]
    """By name; None for a run that was not read yet."""
    read_at: float
    """When all of them were read last, in seconds since the epoch; now if they are being read."""

    @property
    def is_complete(self) -> bool:
        """Whether every run was read."""
        return None not in self.runs.values()

    @property
    def token(self) -> str:
        """A word that changes with what is known."""
        return xxhash.xxh3_64_hexdigest(repr(self.runs).encode())


@dataclass(eq=False)
class Overviews:
    """Reads all runs of a list, once for all viewers, who see what was read last."""

    read: Callable[[str], Overview]
    """Returns the overview of a run by its name, and raises nothing."""
    refresh_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, Overview] = field(default_factory=dict)
    _done: threading.Event | None = None
    """Set when the newest reading ended; None before the first one."""
    _due_at: float = 0.0
    """When the runs are read again, by `clock`."""
    _read_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def moment(self, names: Sequence[str], patience_s: float) -> ListMoment:
        """Return what is known of these runs; wait a little for those that were never read."""
        done = self._begin(names)
        if not self._knows(names):
            done.wait(patience_s)
        return ListMoment({name: self._known.get(name) for name in names}, self._read_at or time.time())

    def _knows(self, names: Sequence[str]) -> bool:
        return all(name in self._known for name in names)

    def _begin(self, names: Sequence[str]) -> threading.Event:
        """Begin to read the runs if it is time to, or one is new; return the end of the newest reading."""
        with self._lock:
            done = self._done
            if done is None or (done.is_set() and (self.clock() >= self._due_at or not self._knows(names))):
                done = self._done = threading.Event()
                # A daemon: a store that hangs does not keep the server from ending.
                threading.Thread(
                    target=self._read_all, args=(names, done), name="dump-ingest-overviews", daemon=True
                ).start()
            return done

    def _read_all(self, names: Sequence[str], done: threading.Event) -> None:
        begun = self.clock()
        try:
            with ThreadPool(min(_THREADS, len(names))) as pool:
                for name, overview in pool.imap_unordered(lambda name: (name, self.read(name)), names):
                    self._known[name] = overview
        finally:  # whatever happens, the next viewer has them read again
            self._read_at, ended = time.time(), self.clock()
            self._due_at = ended + max(self.refresh_s, _REST * (ended - begun))
            done.set()
