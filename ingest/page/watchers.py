"""The watchers that feed the runs of a page: asked at most every few seconds, for all viewers together."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from urllib.parse import urlsplit

import xxhash

from ingest.page.refreshed import Refreshed
from ingest.reader.dump_store import DumpStore
from ingest.service.live_watcher import LiveWatcher, fetch_watcher
from ingest.units import human_bytes
from workers.errors import UsageError

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
