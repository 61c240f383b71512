"""What the consolidator tells Prometheus: how far ranks and cubes are, and how `gc` ended last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry

from ingest.consolidating.consolidator import CommitsListed, StepsConsolidated
from ingest.metrics.common import CommitsBehind, Declare, ProcessMetrics, RankLabels
from ingest.metrics.findings import FindingMetrics
from ingest.store_gc.last_run import GcRunsRead
from workers.events import Event
from workers.tasks.metrics import StoreMetrics

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
#: Text and first value.
_GAUGES = {
    "consolidator_lease_held": ("Whether this process holds the lease of the view.", 0),
    "consolidator_newest_step": ("Highest step of the view; -1 for none.", -1),
    "consolidator_fastest_rank_step": ("Highest step that any rank has committed; -1 for none.", -1),
    "consolidator_slowest_rank_step": (
        "Highest step of the rank that is furthest behind, of those in the store; -1 for none.",
        -1,
    ),
    "consolidator_ranks": ("Ranks that have committed a step.", 0),
    "consolidator_steps_behind": ("Committed steps that the view does not have as they are now.", 0),
    "consolidator_damaged_commits": ("Commits that cannot be read because they are damaged.", 0),
    "consolidator_last_round_timestamp_seconds": (
        "Unix time of the end of the last round; 0 for none yet.",
        0,
    ),
    "consolidator_oldest_waiting_timestamp_seconds": (
        "Unix time since which a step waits to be added to the view; now, if none does.",
        0,
    ),
    "gc_last_success_timestamp_seconds": ("Unix time at which gc last ended well; 0 for never.", 0),
    "gc_last_failure_timestamp_seconds": ("Unix time at which gc last failed; 0 for never.", 0),
}
_OF_RANKS = {
    "committed_step": "Highest step that a rank has committed, by the store.",
    "rank_steps_behind": "Times that the fastest rank committed a higher step since this one committed its "
    "highest.",
}


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
        self._clock = clock
        self._labels = RankLabels()
        self._waiting_since: dict[int, float] = {}
        self._newest, self._began = -1, 0.0
        self._commits_behind = CommitsBehind()
        groups = (
            ProcessMetrics(registry, clock, store, expected_ranks, finishes=finishes),
            FindingMetrics(registry, clock, rules),
            StoreMetrics(registry),
        )
        self._observers = [group.observe for group in groups]
        of_dump, declare = Declare(registry, "dump_ingest_"), Declare(registry, "dump_ingest_consolidator_")
        self._gauges = of_dump.gauges({name: text for name, (text, _) in _GAUGES.items()})
        self._set(**{name: first for name, (_, first) in _GAUGES.items()})
        self._gauges["consolidator_oldest_waiting_timestamp_seconds"].set_function(
            lambda: min(self._waiting_since.values(), default=self._clock())
        )
        self._of_ranks = declare.gauges(_OF_RANKS, "rank")
        self._appended = declare.counter("appended_steps", "Steps added to the view.")
        self._rewritten = declare.counter(
            "rewritten_steps",
            "Steps of the view that were written again, because a rank came late or was dumped again.",
        )
        self._seconds = declare.histogram(
            "round_duration_seconds", "Duration of the rounds that added something.", _SECONDS
        )

    def lease(self, *, held: bool) -> None:
        """Show whether this process holds the lease."""
        self._set(consolidator_lease_held=held)

    def observe(self, event: Event) -> None:
        """Take in an event of the consolidator, or of the data plane in this process."""
        for observe in self._observers:
            observe(event)
        match event:
            case CommitsListed():
                self._began, self._newest = self._clock(), event.newest
                self._set(
                    consolidator_newest_step=event.newest,
                    consolidator_ranks=len(event.committed),
                    consolidator_fastest_rank_step=max(event.committed.values(), default=-1),
                    consolidator_slowest_rank_step=min(event.committed.values(), default=-1),
                )
                committed = dict(sorted(event.committed.items()))
                for label, step in self._labels.combine(committed, min).items():
                    self._of_ranks["committed_step"].labels(rank=label).set(step)
                for label, behind in self._labels.combine(self._commits_behind.after(committed), max).items():
                    self._of_ranks["rank_steps_behind"].labels(rank=label).set(behind)
                self._wait_for(event.behind)
            case StepsConsolidated():
                self._appended.inc(len(event.appended))
                self._rewritten.inc(len(event.rewritten))
                self._wait_for(event.waiting)
                self._set(
                    consolidator_damaged_commits=len(event.damaged),
                    consolidator_last_round_timestamp_seconds=self._clock(),
                )
                if event:
                    newest = max((self._newest, *event.appended, *event.rewritten))
                    self._set(consolidator_newest_step=newest)
                    self._seconds.observe(max(self._clock() - self._began, 0))
            case GcRunsRead(runs=runs):
                self._set(
                    gc_last_success_timestamp_seconds=runs.succeeded_at,
                    gc_last_failure_timestamp_seconds=runs.failed_at,
                )

    def _wait_for(self, steps: Iterable[int]) -> None:
        now = self._clock()
        self._waiting_since = {step: self._waiting_since.get(step, now) for step in steps}
        self._set(consolidator_steps_behind=len(self._waiting_since))

    def _set(self, **values: float) -> None:
        for name, value in values.items():
            self._gauges[name].set(value)
