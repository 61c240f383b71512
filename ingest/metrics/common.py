"""What watchers and consolidators tell Prometheus alike, and how metrics are declared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ingest.heartbeat import last_beat
from ingest.watching.watcher import DumpState
from workers.events import Event
from workers.host.credentials import masked
from workers.tasks.metrics import register_build_info

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
        """Yield the ranks that have a label."""
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
        by_label: dict[str, list[float]] = {}
        for rank, value in values.items():
            by_label.setdefault(self.of(rank), []).append(value)
        return {label: together(of_label) for label, of_label in by_label.items()}


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
        gauge = Declare(registry, "dump_ingest_").gauge
        gauge(
            "time_seconds", "Unix time by the clock of this host; its distance from the scrape is its error."
        ).set_function(clock)
        # It goes on through a scan of half an hour, and stands still if the scan hangs.
        gauge("heartbeat_timestamp_seconds", "Unix time when the process last made progress.").set_function(
            last_beat
        )
        gauge("store_info", "1, with the URL of the store.", "store").labels(store=masked(store)).set(1)
        self._expected = gauge(
            "expected_ranks", "Ranks that the run is to have, by its settings or rank tables; 0: not known."
        )
        self._expected.set(expected_ranks or 0)
        gauge("finishes", "1 if the process takes everything before it ends, and has that scraped.").set(
            finishes
        )
        register_build_info(registry)

    def observe(self, event: Event) -> None:
        """Show how many ranks the rank tables of the dump name, unless the settings say it."""
        if isinstance(event, DumpState) and not self._is_given and event.expected_ranks is not None:
            self._expected.set(event.expected_ranks)


def hang() -> str:
    """Return that the process hangs, and for how long; "" if it makes progress: the answer of `/live`."""
    age_s = time.time() - last_beat()
    return f"hangs: it has made no progress for {age_s:.0f} s" if age_s > STALE_S else ""
