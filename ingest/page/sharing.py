"""Answers that viewers share: each is made once, and kept while there is room; and figures of that."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from workers.errors import REASONS, DumpIngestError
from workers.events import Event
from workers.model import MIB
from workers.store.objects import StoreRequested

#: What a server keeps by default, in bytes of ready answers.
DEFAULT_NBYTES = 64 * MIB
#: What it takes to keep an answer, besides its bytes and those of its question, about.
_KEEPING_NBYTES = 512
#: The most questions whose answers are being made, or wait for a thread. Each holds a moment of its run.
MOST_UNDER_WAY = 100


class PageBusy(DumpIngestError):
    """So many answers are being made that no other is begun."""

    hint = "Try again in a minute."


@dataclass(eq=False)
class SharedAnswers:
    """Ready answers by question, which take at most `limit` bytes; the least recently asked one goes first.

    It belongs to one event loop. Answers are made in the threads of `pool`, and slow ones in those of
    `slow_pool`: the others do not wait for them. At most `MOST_UNDER_WAY` are made, or wait to be made.
    """

    pool: ThreadPoolExecutor
    slow_pool: ThreadPoolExecutor
    limit: int = DEFAULT_NBYTES
    hits: int = 0
    made: int = 0
    nbytes: int = 0
    """Of the kept answers and their questions."""
    _kept: OrderedDict[Hashable, bytes] = field(default_factory=OrderedDict)
    _under_way: dict[Hashable, asyncio.Future[bytes]] = field(default_factory=dict)

    async def answer(self, question: Hashable, make: Callable[[], bytes], *, is_slow: bool = False) -> bytes:
        """Return the answer to a question: a kept one, the one being made, or a new one.

        Raises:
            PageBusy: too many others are being made.
        """
        if question in self._kept:
            self.hits += 1
            self._kept.move_to_end(question)
            return self._kept[question]
        if question in self._under_way:
            self.hits += 1
            return await asyncio.shield(self._under_way[question])
        if len(self._under_way) >= MOST_UNDER_WAY:
            raise PageBusy(f"the page is busy: {MOST_UNDER_WAY} other answers are being made")
        self.made += 1
        future = asyncio.get_running_loop().run_in_executor(self.slow_pool if is_slow else self.pool, make)
        self._under_way[question] = future
        # A viewer who leaves does not take the answer from the others.
        future.add_done_callback(lambda done: self._settle(question, done))
        return await asyncio.shield(future)

    def _settle(self, question: Hashable, done: asyncio.Future[bytes]) -> None:
        del self._under_way[question]
        if done.cancelled() or done.exception() is not None:
            return
        answer = done.result()
        if _nbytes_of(question, answer) > self.limit:
            return
        self._kept[question] = answer
        self.nbytes += _nbytes_of(question, answer)
        while self.nbytes > self.limit:
            self.nbytes -= _nbytes_of(*self._kept.popitem(last=False))


def _nbytes_of(question: Hashable, answer: bytes) -> int:
    """Return about how many bytes an answer takes: viewers may ask long questions with short answers."""
    return _KEEPING_NBYTES + len(repr(question)) + len(answer)


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
