"""What the consolidator tells Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Gauge

from ingest.consolidating.consolidator import CommitsListed, StepsConsolidated
from ingest.metrics.commits_behind import CommitsBehind
from ingest.metrics.declare import Declare
from ingest.metrics.findings import FindingMetrics
from ingest.metrics.gc import GcMetrics
from ingest.metrics.heartbeat import register_heartbeat
from ingest.metrics.process import ProcessMetrics
from ingest.metrics.ranks import RankLabels
from workers.events import Event
from workers.tasks.metrics import StoreMetrics

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class ConsolidatorMetrics:
    """How far the ranks are, and how far the consolidated view is behind them.

    At most two series for each of MAX_RANKS ranks and for all others together, those of `FindingMetrics`
    and `StoreMetrics`, and about fifty.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.time,
        *,
        rules: Iterable[tuple[str, str]] = (),
        store: str = "",
        expected_ranks: int | None = None,
        finishes: bool = False,
    ) -> None:
        """Register everything on `registry`.

        Args:
            registry: where.
            clock: returns Unix time.
            rules: names and severities of the rules that are evaluated over several steps or ranks.
            store: the URL of the store.
            expected_ranks: how many ranks the run is to have; None or 0 for any number.
            finishes: whether the consolidator takes every commit before it ends.
        """
        self._rounds = RoundMetrics(registry, clock)
        groups = (
            ProcessMetrics(registry, clock, store, expected_ranks, finishes=finishes),
            self._rounds,
            FindingMetrics(registry, clock, rules),
            GcMetrics(registry),
            StoreMetrics(registry),
        )
        self._observers = [group.observe for group in groups]
        register_heartbeat(registry)

    def lease(self, *, held: bool) -> None:
        """Show whether this process holds the lease."""
        self._rounds.lease.set(held)

    def observe(self, event: Event) -> None:
        """Take in an event of the consolidator, or of the data plane in this process."""
        for observe in self._observers:
            observe(event)


class RoundMetrics:
    """Rounds of the consolidator, and how far ranks and cubes are at their end."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        """Register everything."""
        self._clock = clock
        self._labels = RankLabels()
        self._waiting_since: dict[int, float] = {}
        self._newest = -1
        self._began = 0.0
        self._commits_behind = CommitsBehind()
        declare = Declare(registry, "dump_ingest_consolidator_")

        def gauge(name: str, text: str, value: float = 0) -> Gauge:
            made = declare.gauge(name, text)
            made.set(value)
            return made

        self.lease = gauge("lease_held", "Whether this process holds the lease of the view.")
        self._newest_step = gauge("newest_step", "Highest step of the view; -1 for none.", -1)
        self._first = gauge("fastest_rank_step", "Highest step that any rank has committed; -1 for none.", -1)
        self._last = gauge(
            "slowest_rank_step",
            "Highest step of the rank that is furthest behind, of those in the store; -1 for none.",
            -1,
        )
        self._ranks = gauge("ranks", "Ranks that have committed a step.")
        self._behind = gauge("steps_behind", "Committed steps that the view does not have as they are now.")
        self._damaged = gauge("damaged_commits", "Commits that cannot be read because they are damaged.")
        self._round = gauge(
            "last_round_timestamp_seconds", "Unix time of the end of the last round; 0 for none yet."
        )
        gauge(
            "oldest_waiting_timestamp_seconds",
            "Unix time since which a step waits to be added to the view; now, if none does.",
        ).set_function(lambda: min(self._waiting_since.values(), default=self._clock()))
        self._committed = declare.gauge(
            "committed_step", "Highest step that a rank has committed, by the store.", "rank"
        )
        self._rank_behind = declare.gauge(
            "rank_steps_behind",
            "Times that the fastest rank committed a higher step since this one committed its highest.",
            "rank",
        )
        self._appended = declare.counter("appended_steps", "Steps added to the view.")
        self._rewritten = declare.counter(
            "rewritten_steps",
            "Steps of the view that were written again, because a rank came late or was dumped again.",
        )
        self._seconds = declare.histogram(
            "round_duration_seconds", "Duration of the rounds that added something.", _SECONDS
        )

    def observe(self, event: Event) -> None:
        """Show the start or the end of a round."""
        match event:
            case CommitsListed():
                self._observe_start(event)
            case StepsConsolidated():
                self._observe_end(event)

    def _observe_start(self, listed: CommitsListed) -> None:
        self._began = self._clock()
        self._newest = listed.newest
        self._newest_step.set(listed.newest)
        self._ranks.set(len(listed.committed))
        self._first.set(max(listed.committed.values(), default=-1))
        self._last.set(min(listed.committed.values(), default=-1))
        for rank in sorted(listed.committed):
            self._labels.of(rank)
        for label, step in self._labels.lowest(listed.committed).items():
            self._committed.labels(rank=label).set(step)
        for label, behind in self._labels.highest(self._commits_behind.after(listed.committed)).items():
            self._rank_behind.labels(rank=label).set(behind)
        self._wait_for(listed.behind)

    def _observe_end(self, consolidated: StepsConsolidated) -> None:
        self._appended.inc(len(consolidated.appended))
        self._rewritten.inc(len(consolidated.rewritten))
        self._damaged.set(len(consolidated.damaged))
        self._wait_for(consolidated.waiting)
        self._round.set(self._clock())
        if consolidated:
            self._newest_step.set(max((self._newest, *consolidated.appended, *consolidated.rewritten)))
            self._seconds.observe(max(self._clock() - self._began, 0))

    def _wait_for(self, steps: Iterable[int]) -> None:
        now = self._clock()
        self._waiting_since = {step: self._waiting_since.get(step, now) for step in steps}
        self._behind.set(len(self._waiting_since))
