"""Serves `/metrics` over HTTP, pages of JSON next to it, and knows when Prometheus took the metrics last.

Here is also what watchers and consolidators tell Prometheus alike, and how metrics are declared.
"""

from __future__ import annotations

import hmac
import math
import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
    start_http_server,
)

from ingest.consolidating.consolidator import StepsConsolidated
from ingest.dispatch.submitter import StepCommitted
from ingest.environment import TRIGGER_TOKEN_VARIABLE
from ingest.layouts.base import Listing
from ingest.steps.watcher import DumpState
from workers.errors import UsageError
from workers.events import Event
from workers.host.credentials import masked
from workers.host.heartbeat import last_beat
from workers.model import StepKey, grouped
from workers.tasks.metrics import register_build_info

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


#: How many steps are remembered, the last ones. No rank is shown further behind.
MAX_STEPS_BEHIND = 1024


@dataclass(slots=True)
class Stragglers:
    """Compares ranks of a dump by what they wrote last, not by the number of their highest step.

    A job that returns to a checkpoint writes lower steps than before, and a job that is killed in the middle
    of a dump leaves ranks one step apart for ever. Neither is a rank that has stopped while others go on.

    Memory: two numbers for each rank, and for each of `MAX_STEPS_BEHIND` steps.
    """

    _last_write: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By rank: when it last wrote, by the clock of the file system, and into which step."""
    _written_at: dict[int, float] = field(default_factory=dict)
    """By step: when any rank last wrote into it."""

    def record_listings(self, listings: Iterable[Listing]) -> None:
        """Take in what a scan has listed. What was seen before counts on when its files are cleaned away."""
        for listing in listings:
            rank, step = listing.key.rank, listing.key.step
            if step is None:
                continue
            at = listing.newest_change
            self._written_at[step] = max(self._written_at.get(step, at), at)
            self._last_write[rank] = max(self._last_write.get(rank, (at, step)), (at, step))
        if len(self._written_at) > MAX_STEPS_BEHIND:
            newest = sorted(self._written_at.items(), key=lambda item: item[1])[-MAX_STEPS_BEHIND:]
            self._written_at = dict(newest)

    def steps_behind(self, present: Collection[StepKey]) -> dict[int, int]:
        """Return by rank how many steps others have written into since, of which it has nothing.

        Args:
            present: the steps of all ranks that the dump has now.
        """
        in_order = sorted(self._written_at.items(), key=lambda item: item[1])
        times = [at for _, at in in_order]
        return {
            rank: sum(
                step != own and StepKey(rank, step) not in present
                for step, _ in in_order[bisect_right(times, at) :]
            )
            for rank, (at, own) in self._last_write.items()
        }


@dataclass(slots=True)
class CommitsBehind:
    """Counts how often the fastest rank of a store commits a higher step after a rank committed its highest.

    Higher than that of the rank, or than the fastest one had then: ranks may number their steps differently,
    and one with lower numbers is not behind because of that.

    Memory: two numbers for each rank, and `MAX_STEPS_BEHIND` steps.
    """

    _fastest: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_STEPS_BEHIND))
    """The highest committed steps of the run that were seen one after the other, ascending."""
    _seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By rank: its highest step, and the step above which commits of the fastest rank count."""

    def after(self, committed: Mapping[int, int]) -> dict[int, int]:
        """Take in the highest committed step of each rank, and return the counts."""
        fastest = max(committed.values(), default=-1)
        # What was removed from the store does not count any more.
        if max(self._fastest, default=-1) > fastest:
            self._seen.clear()
            kept = [step for step in self._fastest if step <= fastest]
            self._fastest = deque(kept, maxlen=MAX_STEPS_BEHIND)
        if max(self._fastest, default=-1) < fastest:
            self._fastest.append(fastest)
        for rank, step in committed.items():
            if rank not in self._seen:
                self._seen[rank] = step, step
            elif self._seen[rank][0] != step:
                self._seen[rank] = step, fastest
        return {
            rank: len(self._fastest) - bisect_right(self._fastest, self._seen[rank][1]) for rank in committed
        }


#: How many ranks of one process have series of their own. A host has ten; ten thousand may share a file
#: system.
MAX_RANKS = 1024
#: The label of all other ranks together.
OTHER = "other"
#: Without a heartbeat for that long, a process hangs. A scan of a very large dump beats for each directory.
STALE_S = 600.0


@dataclass(frozen=True, slots=True)
class Declare:
    """Creates metrics on a registry, with a common beginning of their names."""

    registry: CollectorRegistry
    prefix: str

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Return a new gauge."""
        return Gauge(f"{self.prefix}{name}", text, labels, registry=self.registry)

    def gauges(self, texts: Mapping[str, str], *labels: str) -> dict[str, Gauge]:
        """Return new gauges by name."""
        return {name: self.gauge(name, text, *labels) for name, text in texts.items()}

    def counter(self, name: str, text: str, *labels: str, values: Iterable[str] = ()) -> Counter:
        """Return a new counter; the series of these values of its label exist from the first scrape."""
        counter = Counter(f"{self.prefix}{name}", text, labels, registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        """Return a new histogram."""
        return Histogram(f"{self.prefix}{name}", text, buckets=buckets, registry=self.registry)


@dataclass(slots=True)
class RankLabels:
    """Gives the first `limit` ranks a label each, and all others a common one."""

    limit: int = MAX_RANKS
    on_new: list[Callable[[str], object]] = field(default_factory=list)
    """Called with each label before it is first used, so that all of its series begin at zero."""
    _labels: dict[int, str] = field(default_factory=dict)
    _has_other: bool = False

    def __iter__(self) -> Iterator[int]:
        return iter(self._labels)

    def of(self, rank: int) -> str:
        """Return the label of a rank, always the same one."""
        label = self._labels.get(rank)
        if label is None:
            label = self._labels[rank] = str(rank) if len(self._labels) < self.limit else OTHER
            if not self._has_other:
                self._has_other = label == OTHER
                for create in self.on_new:
                    create(label)
        return label

    def combine(
        self, values: Mapping[int, float], together: Callable[[Iterable[float]], float]
    ) -> dict[str, float]:
        """Return for each label what its ranks have together: `min`, `max` or `sum`."""
        by_label = grouped((self.of(rank), value) for rank, value in values.items())
        return {label: together(of_label) for label, of_label in by_label.items()}


_OF_PROCESS = {
    "time_seconds": "Unix time by the clock of this host; its distance from the scrape is its error.",
    # It goes on through a scan of half an hour, and stands still if the scan hangs.
    "heartbeat_timestamp_seconds": "Unix time when the process last made progress.",
    "expected_ranks": "Ranks that the run is to have, by its settings or rank tables; 0: not known.",
    "finishes": "1 if the process takes everything before it ends, and has that scraped.",
}


class ProcessMetrics:
    """Which process of which run this is: clock, heartbeat, store, expected ranks, kind of end, version."""

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        store: str = "",
        expected_ranks: int | None = None,
        *,
        finishes: bool = False,
    ) -> None:
        """Register everything.

        Args:
            registry: where.
            clock: returns Unix time.
            store: the URL of the store; credentials in it are masked.
            expected_ranks: how many ranks the run is to have; 0 for any number, None if a rank table in the
                dump is to tell.
            finishes: whether the process takes everything before it ends, and has that scraped.
        """
        self._is_given = expected_ranks is not None
        declare = Declare(registry, "dump_ingest_")
        gauges = declare.gauges(_OF_PROCESS)
        gauges["time_seconds"].set_function(clock)
        gauges["heartbeat_timestamp_seconds"].set_function(last_beat)
        gauges["finishes"].set(finishes)
        self._expected = gauges["expected_ranks"]
        self._expected.set(expected_ranks or 0)
        declare.gauge("store_info", "1, with the URL of the store.", "store").labels(masked(store)).set(1)
        register_build_info(registry)

    def observe(self, event: Event) -> None:
        """Show how many ranks the rank tables of the dump name, unless the settings say it."""
        if isinstance(event, DumpState) and not self._is_given and event.expected_ranks is not None:
            self._expected.set(event.expected_ranks)


def hang() -> str:
    """Return that the process hangs, and for how long; "" if it makes progress: the answer of `/live`."""
    age_s = time.time() - last_beat()
    return f"hangs: it has made no progress for {age_s:.0f} s" if age_s > STALE_S else ""


#: How many intervals after a scrape the next one counts as late, and how many seconds after the interval at
#: the earliest, because a loaded machine takes some of them: then nobody scrapes any more.
_LATE, _LATE_S = 1.5, 5.0
#: What is taken for the interval after the first scrape, and the longest one that is waited for, in seconds.
_LONGEST_INTERVAL_S = 60.0
#: How many scrapes are remembered. Two servers may scrape, so the interval is the longest one between them.
_REMEMBERED = 5


class Scrapes:
    """The scrapes of one process. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken = threading.Condition()
        self._begun: deque[float] = deque(maxlen=_REMEMBERED)
        """When the last scrapes began, the latest at the end."""
        self._news_at: float | None = None

    def now(self) -> float:
        """Return the time by the clock that `record` goes by."""
        return self._clock()

    def record(self, began: float) -> None:
        """Record a scrape that was answered, and when it began."""
        with self._taken:
            self._begun.append(max(began, *self._begun) if self._begun else began)
            self._taken.notify_all()

    def observe(self, event: Event) -> None:
        """Record that there is something to be scraped: a commit, or what a round of the consolidator did."""
        if isinstance(event, StepCommitted) or (isinstance(event, StepsConsolidated) and event):
            self._news_at = self._clock()

    def wait_for_last(self, timeout_s: float, *, has_news: bool = False) -> None:
        """Return when the metrics as they are now were scraped, or nobody is going to do it.

        It does not wait if nothing has happened since the last scrape, if there was never one, or if the next
        one is late.

        Args:
            timeout_s: how long it may wait.
            has_news: whether there is something to be scraped that no event told.
        """
        now = self._clock()
        with self._taken:
            if not self._begun:
                return
            since = now if has_news else self._news_at
            if since is None or self._begun[-1] > since:
                return
            longest_s = max((later - sooner for sooner, later in pairwise(self._begun)), default=math.inf)
            interval_s = min(longest_s, _LONGEST_INTERVAL_S)
            late_at = self._begun[-1] + max(_LATE * interval_s, interval_s + _LATE_S)
            until = min(now + timeout_s, late_at)
            while self._begun[-1] <= since and (left_s := until - self._clock()) > 0:
                self._taken.wait(left_s)


#: Prometheus, and whatever scrapes like it, sends this with each scrape. Probes and people do not.
_SCRAPE_HEADER = "HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS"


def serve(
    registry: CollectorRegistry,
    address: str,
    pages: Mapping[str, Callable[[], bytes]] | None = None,
    unready: Callable[[], str] = str,
    scrapes: Scrapes | None = None,
    *,
    trigger: Callable[[str], None] | None = None,
) -> Callable[[], None]:
    """Serve `/metrics`, with memory and processor time; return a function that stops it.

    `/live` answers 503 once the process hangs, by its heartbeat, and 200 until then.

    Args:
        registry: what `/metrics` shows.
        address: `host:port`.
        pages: by path: returns a page of JSON. Called in a thread of the server.
        unready: returns why the process is not ready, "" if it is: the answer of `/ready`, with status 503 or
            200. Called in a thread of the server, too.
        scrapes: where scrapes are recorded.
        trigger: told why, if somebody posts to `/trigger?why=...` and sends the token of the environment;
            called in a thread of the server. None if this process triggers nothing.

    Raises:
        UsageError: the address is in use, or does not belong to this host.
    """
    host, _, port = address.rpartition(":")
    disable_created_metrics()  # type: ignore[no-untyped-call]  # one series per counter that nobody reads
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
        server.set_app(
            _application(make_wsgi_app(registry), pages or {}, unready, scrapes or Scrapes(), trigger)
        )
    except (OSError, OverflowError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise UsageError(
            f"cannot serve /metrics at {address}: {reason}", hint="Choose another --metrics HOST:PORT."
        ) from exc

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    return stop


def _application(
    metrics: WSGIApplication,
    pages: Mapping[str, Callable[[], bytes]],
    unready: Callable[[], str],
    scrapes: Scrapes,
    trigger: Callable[[str], None] | None,
) -> WSGIApplication:
    """Return an application that serves metrics, the pages, `/ready` and `/live`, and 404 for other paths.

    A probe of a path that does not exist would succeed for ever if it were answered with the metrics.
    """
    states = {"/ready": unready, "/live": hang}
    paths = sorted(["/metrics", *pages, *states])

    def serve_request(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/trigger" and trigger is not None:
            return _line(start_response, *_triggered(environ, trigger))
        if path in states:
            reason = states[path]()
            status = "503 Service Unavailable" if reason else "200 OK"
            return _line(start_response, status, reason or path[1:])
        if path in pages and environ["REQUEST_METHOD"] == "GET":
            content = pages[path]()
            headers = [("Content-Type", "application/json"), ("Content-Length", f"{len(content)}")]
            start_response("200 OK", headers)
            return [content]
        if path not in ("", "/", *paths):
            return _line(start_response, "404 Not Found", f"served here: {', '.join(paths)}")
        began = scrapes.now()
        body = metrics(environ, start_response)
        return _Body(body, lambda: scrapes.record(began)) if _SCRAPE_HEADER in environ else body

    return serve_request


def _triggered(environ: WSGIEnvironment, trigger: Callable[[str], None]) -> tuple[str, str]:
    token = os.environ.get(TRIGGER_TOKEN_VARIABLE, "")
    given = environ.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ")
    if environ["REQUEST_METHOD"] != "POST":
        return "405 Method Not Allowed", "POST /trigger?why=..."
    if not token or not hmac.compare_digest(given.encode(), token.encode()):
        hint = f"send `Authorization: Bearer` with the {TRIGGER_TOKEN_VARIABLE} of this process"
        return "401 Unauthorized", hint if token else "no token is set: " + hint
    why = " ".join(parse_qs(environ.get("QUERY_STRING", "")).get("why", ["a request to /trigger"]))
    try:
        trigger(why)
    except UsageError as exc:
        return "409 Conflict", exc.message
    return "202 Accepted", "all ranks save what they hold"


def _line(start_response: StartResponse, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


class _Body(list[bytes]):
    """The body of an answer. The server calls `close` when it was sent."""

    def __init__(self, body: Iterable[bytes], sent: Callable[[], None]) -> None:
        super().__init__(body)
        self._sent = sent

    def close(self) -> None:
        self._sent()
