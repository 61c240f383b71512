"""When Prometheus took the metrics of a process, so that one that ends can have its last ones taken first."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise

from ingest.consolidating.consolidator import StepsConsolidated
from ingest.dispatch.outcomes import StepCommitted
from workers.events import Event

#: How many intervals after a scrape the next one counts as late: then nobody scrapes any more.
_LATE = 1.5
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
            until = min(now + timeout_s, self._begun[-1] + _LATE * interval_s)
            while self._begun[-1] <= since and (left_s := until - self._clock()) > 0:
                self._taken.wait(left_s)
