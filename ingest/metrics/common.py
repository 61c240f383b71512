"""What watchers and consolidators tell Prometheus alike, and how metrics are declared."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ingest.heartbeat import last_beat
from ingest.layouts.base import Listing
from ingest.watching.watcher import DumpState
from workers.events import Event
from workers.host.credentials import masked
from workers.model import StepKey
from workers.tasks.metrics import register_build_info

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
