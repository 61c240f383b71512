"""What a watcher tells Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry

from ingest.metrics.commits import CommitMetrics
from ingest.metrics.disk import DiskMetrics
from ingest.metrics.failures import FailureMetrics
from ingest.metrics.findings import COUNTED, FindingMetrics
from ingest.metrics.heartbeat import register_heartbeat
from ingest.metrics.process import ProcessMetrics
from ingest.metrics.progress import ProgressMetrics
from ingest.metrics.ranks import RankLabels
from ingest.metrics.retention import RetentionMetrics
from workers.events import Event
from workers.tasks.metrics import StoreMetrics


class WatcherMetrics:
    """Everything about the ranks that one watcher looks after.

    At most fifteen series for each of MAX_RANKS ranks and for all others together, those of
    `FindingMetrics`, `RetentionMetrics` and `StoreMetrics`, and about eighty.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.time,
        *,
        rules: Iterable[tuple[str, str]] = COUNTED,
        store: str = "",
        expected_ranks: int | None = None,
        finishes: bool = False,
    ) -> None:
        """Register everything on `registry`.

        Args:
            registry: where.
            clock: returns Unix time.
            rules: names and severities of the rules that are evaluated.
            store: the URL of the store.
            expected_ranks: how many ranks the run is to have; 0 for any number, None to ask rank tables.
            finishes: whether the watcher takes everything before it ends.
        """
        labels = RankLabels()
        groups = (
            ProcessMetrics(registry, clock, store, expected_ranks, finishes=finishes),
            ProgressMetrics(registry, clock, labels),
            CommitMetrics(registry, clock, labels),
            FindingMetrics(registry, clock, rules),
            FailureMetrics(registry),
            DiskMetrics(registry),
            RetentionMetrics(registry),
            StoreMetrics(registry),
        )
        self._observers = [group.observe for group in groups]
        register_heartbeat(registry)

    def observe(self, event: Event) -> None:
        """Take in an event of the service, or of the data plane in this process."""
        for observe in self._observers:
            observe(event)
