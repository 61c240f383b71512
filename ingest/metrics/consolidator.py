"""What the consolidator tells Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ingest.consolidating.consolidator import CommitsListed, StepsConsolidated
from ingest.metrics.findings import FindingMetrics, RuleTotal
from ingest.metrics.ranks import RankLabels
from workers.events import Event
from workers.store.model import Evaluated
from workers.tasks.metrics import StoreMetrics, register_build_info

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class ConsolidatorMetrics:
    """How far the ranks are, and how far the consolidated view is behind them.

    Bound of series: one for each of MAX_RANKS ranks and one for all others together, those of
    `FindingMetrics` and `StoreMetrics`, and about forty.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.time,
        *,
        rules: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Register everything on `registry`.

        Args:
            registry: where.
            clock: returns Unix time.
            rules: names and severities of the rules that are evaluated over several steps or ranks.
        """
        self._clock = clock
        self._labels = RankLabels()
        self._waiting_since: dict[int, float] = {}
        self._newest = -1
        self._began = 0.0
        self.findings = FindingMetrics(registry, clock, rules)
        self._store = StoreMetrics(registry)
        register_build_info(registry)

        def gauge(name: str, text: str, value: float = 0) -> Gauge:
            made = Gauge(f"dump_ingest_consolidator_{name}", text, registry=registry)
            made.set(value)
            return made

        self._lease = gauge("lease_held", "Whether this process holds the lease of the view.")
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
        self._oldest = gauge(
            "oldest_waiting_timestamp_seconds",
            "Unix time since which a step waits to be taken into the view; now, where none does.",
        )
        self._oldest.set_function(lambda: min(self._waiting_since.values(), default=self._clock()))
        self._committed = Gauge(
            "dump_ingest_consolidator_committed_step",
            "Highest step that a rank has committed, by the store.",
            ["rank"],
            registry=registry,
        )
        self._appended = Counter(
            "dump_ingest_consolidator_appended_steps", "Steps taken into the view.", registry=registry
        )
        self._rewritten = Counter(
            "dump_ingest_consolidator_rewritten_steps",
            "Steps of the view that were written again, because a rank came late or was dumped again.",
            registry=registry,
        )
        self._seconds = Histogram(
            "dump_ingest_consolidator_round_duration_seconds",
            "Duration of the rounds in which something was taken in.",
            buckets=_SECONDS,
            registry=registry,
        )

    def lease(self, *, held: bool) -> None:
        """Note that the lease was taken, or let go of."""
        self._lease.set(held)

    def observe_event(self, event: Event) -> None:
        """Take in what the data plane does in this process."""
        self._store.observe(event)

    def observe(self, event: Event) -> None:
        """Take in the begin or the end of a round."""
        match event:
            case CommitsListed(committed=committed, behind=behind, newest=newest):
                self._began = self._clock()
                self._newest = newest
                self._newest_step.set(newest)
                self._ranks.set(len(committed))
                self._first.set(max(committed.values(), default=-1))
                self._last.set(min(committed.values(), default=-1))
                for rank in sorted(committed):
                    self._labels.of(rank)
                for label, step in self._labels.lowest(committed).items():
                    self._committed.labels(rank=label).set(step)
                self._wait_for(behind)
            case StepsConsolidated():
                self._appended.inc(len(event.appended))
                self._rewritten.inc(len(event.rewritten))
                self._damaged.set(len(event.damaged))
                self._wait_for(event.waiting)
                self._round.set(self._clock())
                for one in event.findings:
                    self._count(one.found, one.step)
                if event:
                    self._newest_step.set(max((self._newest, *event.appended, *event.rewritten)))
                    self._seconds.observe(max(self._clock() - self._began, 0))

    def _count(self, found: Evaluated, step: int) -> None:
        """Count what rules found in a step, and note each rank of which a finding was stored."""
        severity_of = found.severities
        for rule, total in found.totals.items():
            self.findings.count(RuleTotal(rule, severity_of.get(rule, "warning"), total))
        for rank, rule, severity in {(one.rank, one.rule, one.severity) for one in found.findings}:
            self.findings.note_place(rank, step, rule, severity)
        self.findings.count_failures(len(found.failed))

    def _wait_for(self, steps: Iterable[int]) -> None:
        now = self._clock()
        self._waiting_since = {step: self._waiting_since.get(step, now) for step in steps}
        self._behind.set(len(self._waiting_since))
