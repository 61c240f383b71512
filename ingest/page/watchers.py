"""The watchers that feed the runs of a page: asked at most every few seconds, for all viewers together.

`Refreshed` is anything that is read from elsewhere for all viewers while somebody asks for it.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from multiprocessing.pool import ThreadPool
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import xxhash

from ingest.reader.dump_store import DumpStore
from ingest.service.live_watcher import LiveWatcher, fetch_watcher
from ingest.units import human_bytes
from workers.errors import StoreError, UsageError

Value = TypeVar("Value")
#: How long somebody who comes after a while waits for a new value, in seconds.
_READ_PATIENCE_S = 2.0
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
            wait([begun], max(self._asked_at + _READ_PATIENCE_S - self.clock(), 0))
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


#: How long a watcher may take for an answer, in seconds.
_PATIENCE_S = 3.0
#: Watchers that are asked at once.
_AT_ONCE = 16
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s\[\]/:@]+):(\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Watched:
    """The watchers of one run at one moment."""

    watchers: tuple[LiveWatcher, ...]

    @property
    def token(self) -> str:
        """Names what viewers see of them: it stays while nothing but the bytes on a disk changes a little."""
        seen = [
            (
                watcher.url,
                watcher.problem,
                [(row.rank, row.step, row.phase, row.reason) for row in watcher.steps],
                [(rank.rank, round(rank.lag_s), rank.pending_bytes) for rank in watcher.ranks],
                [(ring.rank, ring.steps, ring.left_out, ring.lost) for ring in watcher.boxes.rings],
                watcher.boxes.incidents,
                watcher.disk and (human_bytes(watcher.disk.free_bytes), watcher.disk.under_pressure),
            )
            for watcher in self.watchers
        ]
        return xxhash.xxh3_64_hexdigest(repr(seen).encode())


def parse_addresses(words: str) -> tuple[str, ...]:
    """Return the URLs of `HOST:PORT,...`, each of which may have a scheme.

    Raises:
        UsageError: one of them is not an address.
    """
    urls = []
    for word in filter(None, (word.strip() for word in words.split(","))):
        scheme, separator, address = word.rpartition("://")
        match = _ADDRESS.fullmatch(address.rstrip("/"))
        if match is None or int(match[2]) > 65535 or (separator and scheme not in ("http", "https")):
            raise UsageError(
                f"--watchers: {word!r} is not an address",
                hint="HOST:PORT, at which `watch --metrics` serves, such as node1:9108,node2:9108.",
            )
        urls.append(f"{scheme or 'http'}://{match[0]}")
    return tuple(urls)


class Watchers:
    """Asks watchers, once for all viewers."""

    def __init__(
        self,
        urls: Sequence[str],
        refresh_s: float = 5.0,
        ask: Callable[[str, float], LiveWatcher] = fetch_watcher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nobody yet. A name with several addresses, such as a headless service, is as many watchers."""
        self._urls, self._ask = urls, ask
        self.known = Refreshed(self._ask_all, refresh_s, clock)

    def of_store(self, store: str) -> Watched:
        """Return the watchers of a store, and those that did not answer: any of them may be one of its."""
        return Watched(
            tuple(each for each in self.known.now() if each.problem or _is_same(each.store, store))
        )

    def _ask_all(self, _: object) -> list[LiveWatcher]:
        with ThreadPool(_AT_ONCE) as pool:
            urls = [url for known in pool.map(addresses_of, self._urls) for url in known]
            return pool.map(lambda url: self._ask(url, _PATIENCE_S), urls)


def watchers(store: DumpStore, addresses: str) -> tuple[LiveWatcher, ...]:
    """Return the state of the watchers of a store: lag, backlog, disk, and what steps wait for.

    Those that do not answer within 3 s are among them, each with its `problem`: any of them may write to the
    store. Watchers of other stores are left out.

    Args:
        store: the store.
        addresses: where they serve their metrics, as `HOST:PORT,...`.

    Raises:
        UsageError: one of these is not an address, or there is none.
    """
    urls = parse_addresses(addresses)
    if not urls:
        raise UsageError("no address of a watcher is given", hint="HOST:PORT,... of `watch --metrics`.")
    return Watchers(urls).of_store(store.url).watchers


def addresses_of(url: str) -> list[str]:
    """Return a URL for each address of its host; the URL itself if there is one, or none is known.

    Of a host with addresses of both kinds, those of IPv4 count: each watcher is asked once.
    """
    parts = urlsplit(url)
    try:
        known = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except OSError:
        return [url]
    hosts = {str(address[0]) for kind, *_, address in known if kind == socket.AF_INET} or {
        f"[{address[0]}]" for *_, address in known
    }
    if len(hosts) < 2:
        return [url]
    return [f"{parts.scheme}://{host}:{parts.port}" for host in sorted(hosts)]


def _is_same(url: str, other: str) -> bool:
    """Return whether two URLs name one store: directories may be mounted elsewhere on each host."""
    url, other = url.rstrip("/"), other.rstrip("/")
    if "://" in url and "://" in other:
        return url == other
    return url.rpartition("/")[2] == other.rpartition("/")[2]
