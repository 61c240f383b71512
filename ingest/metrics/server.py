"""Serves `/metrics` over HTTP, pages of JSON next to it, and knows when Prometheus took the metrics last."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
    start_http_server,
)

from ingest.consolidating.consolidator import StepsConsolidated
from ingest.dispatch.outcomes import StepCommitted
from ingest.metrics.common import hang
from workers.errors import UsageError
from workers.events import Event

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


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
        """Begin with none.

        Args:
            clock: returns seconds.
        """
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

    Raises:
        UsageError: the address is in use, or does not belong to this host.
    """
    host, _, port = address.rpartition(":")
    disable_created_metrics()  # type: ignore[no-untyped-call]  # one series per counter that nobody reads
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
        metrics = make_wsgi_app(registry)
        if scrapes is not None:
            metrics = _recorded(metrics, scrapes)
        server.set_app(_with_pages(metrics, pages or {}, unready))
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


def _with_pages(
    metrics: WSGIApplication, pages: Mapping[str, Callable[[], bytes]], unready: Callable[[], str]
) -> WSGIApplication:
    """Return an application that serves metrics, the pages, `/ready` and `/live`, and 404 for other paths.

    A probe of a path that does not exist would succeed for ever if it were answered with the metrics.
    """
    states = {"/ready": unready, "/live": hang}
    paths = sorted(["/metrics", *pages, *states])

    def serve_request(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path in states:
            reason = states[path]()
            status = "503 Service Unavailable" if reason else "200 OK"
            return _line(start_response, status, reason or path[1:])
        if path in pages and environ["REQUEST_METHOD"] == "GET":
            content = pages[path]()
            headers = [("Content-Type", "application/json"), ("Content-Length", f"{len(content)}")]
            start_response("200 OK", headers)
            return [content]
        if path in ("", "/", *paths):
            return metrics(environ, start_response)
        return _line(start_response, "404 Not Found", f"served here: {', '.join(paths)}")

    return serve_request


def _line(start_response: StartResponse, status: str, text: str) -> list[bytes]:
    """Answer with a line of text."""
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


def _recorded(metrics: WSGIApplication, scrapes: Scrapes) -> WSGIApplication:
    """Return an application that records each scrape when its answer was sent."""

    def serve_request(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        began = scrapes.now()
        body = metrics(environ, start_response)
        return _Body(body, lambda: scrapes.record(began)) if _SCRAPE_HEADER in environ else body

    return serve_request


class _Body(list[bytes]):
    """The body of an answer. The server calls `close` when it was sent."""

    def __init__(self, body: Iterable[bytes], sent: Callable[[], None]) -> None:
        super().__init__(body)
        self._sent = sent

    def close(self) -> None:
        """Do what is to be done when the answer was sent."""
        self._sent()
