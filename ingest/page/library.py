"""The runs that a page shows: one store, or the stores below a URL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from ingest.page.moment import Moment
from ingest.reader.dump_store import open_store
from workers.errors import DumpIngestError, StoreError, UsageError
from workers.store import commit
from workers.store.opening import open_objects, resolve

#: The most runs of a list.
MAX_RUNS = 500


@dataclass(eq=False)
class Run:
    """One store, which is read again when it is asked for and its moment is older than `refresh_s`.

    However many viewers ask, one of them reads; the others get the moment before until that is done.
    """

    name: str
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    refresh_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    _moment: Moment | None = None
    _read_at: float = 0.0
    _away: str = ""
    """Why the store could not be read the last time; "" if it could."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def away(self) -> str:
        """Why the store did not answer when it was last asked; "" if it did."""
        return self._away

    def moment(self) -> Moment:
        """Return the run as it is now, or as it was when the store last answered.

        Raises:
            UsageError: the URL does not hold a store.
            StoreError: the store cannot be read and has not been read before.
        """
        known = self._moment
        if known is not None and self.clock() - self._read_at < self.refresh_s:
            return known
        if not self._lock.acquire(blocking=known is None):
            return known if known is not None else self.moment()
        try:
            known = self._moment
            if known is None or self.clock() - self._read_at >= self.refresh_s:
                known = self._moment = self._read(known)
            return known
        finally:
            self._lock.release()

    def _read(self, known: Moment | None) -> Moment:
        """Return the run as it is now; as it was before if the store does not answer."""
        try:
            now = Moment.of(open_store(self.url, **self.options)) if known is None else known.later()
        except StoreError as exc:
            self._away = exc.message
            if known is None:
                raise
            return known
        else:
            self._away = ""
            return now
        finally:
            self._read_at = self.clock()


@dataclass(eq=False)
class Library:
    """The runs of a page, by name."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    refresh_s: float = 5.0
    _runs: dict[str, Run] = field(default_factory=dict)
    _is_single: bool | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_single(self) -> bool:
        """Whether the URL is that of one store, and not of a place that holds stores.

        Raises:
            StoreError: the place cannot be read.
        """
        if self._is_single is None:
            objects = open_objects(resolve(self.url, dict(self.options)))
            try:
                self._is_single = commit.read_root(objects) is not None
            except UsageError:
                self._is_single = False
        return self._is_single

    def names(self) -> list[str]:
        """Return the names of the runs, in order.

        Raises:
            UsageError: there is none.
        """
        if self.is_single:
            return [PurePosixPath(self.url.rstrip("/")).name or "run"]
        objects = open_objects(resolve(self.url, dict(self.options)))
        names = list(islice(filter(self._is_store, objects.children()), MAX_RUNS))
        if not names:
            raise UsageError(
                f"{self.url}: no dump-ingest store there, nor directly below",
                hint="Is the URL right? `ingest` and `watch` create a store.",
            )
        return names

    def run(self, name: str) -> Run:
        """Return a run by its name.

        Raises:
            UsageError: there is no such run. No name leads out of the URL: only listed ones are known.
        """
        with self._lock:
            if name in self._runs:
                return self._runs[name]
        if name not in self.names():
            raise UsageError(f"{self.url}: no run {name!r}", hint="The first page lists all runs.")
        url = self.url if self.is_single else f"{self.url.rstrip('/')}/{name}"
        with self._lock:
            return self._runs.setdefault(name, Run(name, url, self.options, self.refresh_s))

    def _is_store(self, name: str) -> bool:
        if name.startswith("."):
            return False
        try:
            objects = open_objects(resolve(f"{self.url.rstrip('/')}/{name}", dict(self.options)))
            return commit.read_root(objects) is not None
        except DumpIngestError:
            return False
