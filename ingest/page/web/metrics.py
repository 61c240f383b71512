"""Figures of the server for Prometheus, in a registry of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ingest.page.sharing import SharedAnswers
from workers.errors import REASONS
from workers.events import Event
from workers.store.events import StoreRequested


class PageMetrics:
    """How often and how fast the page answers, and what it keeps."""

    def __init__(self) -> None:
        """Begin with zeros, for every reason of an error."""
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            "dump_ingest_page_answer_seconds",
            "Time to answer, by view or question.",
            ["view"],
            registry=self._registry,
            buckets=(0.005, 0.02, 0.05, 0.1, 0.3, 1, 3, 10, 30),
        )
        self._failures = Counter(
            "dump_ingest_page_failures",
            "Answers that failed, by reason.",
            ["reason"],
            registry=self._registry,
        )
        for reason in REASONS:
            self._failures.labels(reason)
        self._requests = Counter(
            "dump_ingest_page_store_requests",
            "Requests to stores, by operation; one for several objects counts as one.",
            ["op"],
            registry=self._registry,
        )
        self._kept = Gauge("dump_ingest_page_kept_bytes", "Bytes of kept answers.", registry=self._registry)
        self._limit = Gauge(
            "dump_ingest_page_kept_limit_bytes", "The most bytes of kept answers.", registry=self._registry
        )
        self._shared = Gauge(
            "dump_ingest_page_shared_answers",
            "Answers that were made for another viewer.",
            registry=self._registry,
        )

    @contextmanager
    def answering(self, view: str) -> Iterator[None]:
        """Measure an answer."""
        begin = time.perf_counter()
        yield
        self._seconds.labels(view).observe(time.perf_counter() - begin)

    def observe(self, event: Event) -> None:
        """Count a request to a store, in whichever thread it was made."""
        if isinstance(event, StoreRequested):
            self._requests.labels(event.op).inc()

    def failed(self, reason: str) -> None:
        """Count an answer that failed."""
        self._failures.labels(reason).inc()

    def text(self, answers: SharedAnswers) -> bytes:
        """Return all figures."""
        self._kept.set(answers.nbytes)
        self._limit.set(answers.limit)
        self._shared.set(answers.hits)
        return generate_latest(self._registry)
