"""How far the ranks of a watcher are: lag, backlog, and what is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from ingest.dispatch.outcomes import StepCommitted
from ingest.layouts.base import Listing, ProblemKind
from ingest.metrics.declare import Declare
from ingest.metrics.ranks import OTHER, RankLabels
from ingest.metrics.stragglers import Stragglers
from ingest.watching.watcher import DumpState
from workers.events import Event
from workers.model import StepKey


class ProgressMetrics:
    """Lag, backlog and newest steps by rank. Eight series for each label of a rank, and five."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float], labels: RankLabels) -> None:
        """Register everything."""
        self._clock = clock
        self._labels = labels
        labels.on_new.append(self._create)
        self._oldest: dict[str, float] = {}
        """By label: when the oldest pending step last changed; 0 if none is pending."""
        self._newest: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        """By rank: the highest committed step. It stays when the source is cleaned away."""
        self._committed_at: dict[int, float] = {}
        self._pending: dict[int, dict[StepKey, Listing]] = {}
        """By rank: its steps that are not committed, as the last scan listed them."""
        self._stragglers = Stragglers()
        declare = Declare(registry, "dump_ingest_watcher_")
        self._gauges = {
            name: declare.gauge(name, text, "rank")
            for name, text in {
                "oldest_pending_timestamp_seconds": "Unix time of the newest change in the oldest step that "
                "is not committed; now, if none is pending. The lag is time() minus this.",
                "newest_step": "Highest step that has files or is committed; -1 for none.",
                "committed_step": "Highest step that is committed; -1 for none.",
                "last_commit_timestamp_seconds": "Unix time of the last commit by this process; 0 for none.",
                "steps_behind": "Steps that other ranks have written since this one wrote last.",
                "pending_steps": "Steps that are not committed as they are now.",
                "pending_files": "Files of those steps.",
                "pending_bytes": "Bytes of those files.",
            }.items()
        }
        self._look = declare.gauge(
            "last_look_timestamp_seconds", "Unix time of the last scan; 0 before the dump exists."
        )
        self._ranks = declare.gauge("ranks", "Ranks that have, or had, files.")
        self._problems = declare.gauge(
            "problems", "Files and directories that cannot be ingested, by what keeps them from it.", "kind"
        )
        for kind in ProblemKind:
            self._problems.labels(kind=kind.value)

    def observe(self, event: Event) -> None:
        """Show what a scan or a commit has changed."""
        match event:
            case DumpState():
                self._observe_scan(event)
            case StepCommitted(summary=summary):
                self._observe_commit(summary.key)

    def _observe_scan(self, dump: DumpState) -> None:
        self._look.set(self._clock())
        counts = Counter(problem.kind for problem in dump.problems)
        for kind in ProblemKind:
            self._problems.labels(kind=kind.value).set(counts[kind])
        for rank in sorted({key.rank for key in dump.there}):
            self._labels.of(rank)
        steps_of: dict[int, list[StepKey]] = {rank: [] for rank in self._labels}
        for key in dump.there:
            if key.step is not None:
                steps_of[key.rank].append(key)
        self._ranks.set(len(steps_of))
        self._pending = {
            rank: {key: dump.pending[key] for key in steps if key in dump.pending}
            for rank, steps in steps_of.items()
        }
        self._set_steps(steps_of, self._pending, dump.unlisted)
        self._set_backlog(self._pending)
        self._stragglers.record_listings(dump.present.values())
        if not dump.unlisted:  # nothing is known of what is still to be listed
            self._set("steps_behind", self._labels.highest(self._stragglers.steps_behind(dump.present)))

    def _set_steps(
        self,
        steps_of: Mapping[int, list[StepKey]],
        pending_of: Mapping[int, Mapping[StepKey, Listing]],
        unlisted: frozenset[StepKey],
    ) -> None:
        """Show the newest and the committed steps."""
        for rank, steps in steps_of.items():
            for key in steps:
                if key not in pending_of[rank] and key not in unlisted:
                    self._commit(key)
            highest = max((key.order[0] for key in steps), default=-1)
            self._newest[rank] = max(highest, self._committed.get(rank, -1))
        self._set("newest_step", self._labels.lowest(self._newest))
        self._set("committed_step", self._labels.lowest(dict.fromkeys(steps_of, -1) | self._committed))
        never = dict.fromkeys(steps_of, 0.0)
        self._set("last_commit_timestamp_seconds", self._labels.lowest(never | self._committed_at))

    def _set_backlog(self, pending_of: Mapping[int, Mapping[StepKey, Listing]]) -> None:
        """Show what is pending, and since when."""
        amounts: dict[str, Callable[[Listing], float]] = {
            "pending_steps": lambda _: 1,
            "pending_files": lambda listing: len(listing.files),
            "pending_bytes": lambda listing: listing.nbytes,
        }
        for name, amount in amounts.items():
            totals = {rank: sum(map(amount, pending.values())) for rank, pending in pending_of.items()}
            self._set(name, self._labels.total(totals))
        oldest = self._labels.lowest(
            {
                rank: pending[min(pending, key=lambda key: key.order)].newest_change
                for rank, pending in pending_of.items()
                if pending
            }
        )
        labels = {self._labels.of(rank) for rank in pending_of}
        self._oldest |= {label: oldest.get(label, 0.0) for label in labels}

    def _observe_commit(self, key: StepKey) -> None:
        label = self._labels.of(key.rank)
        self._commit(key)
        self._pending.get(key.rank, {}).pop(key, None)
        self._committed_at[key.rank] = self._clock()
        if label != OTHER:  # the next scan shows what ranks have together
            self._set("last_commit_timestamp_seconds", {label: self._committed_at[key.rank]})
            self._set("committed_step", {label: self._committed[key.rank]})
            self._set_backlog({key.rank: self._pending.get(key.rank, {})})

    def _commit(self, key: StepKey) -> None:
        self._committed[key.rank] = max(self._committed.get(key.rank, -1), key.order[0])

    def _create(self, label: str) -> None:
        """Create the series of a label."""
        for gauge in self._gauges.values():
            gauge.labels(rank=label)
        self._gauges["oldest_pending_timestamp_seconds"].labels(rank=label).set_function(
            lambda: self._oldest.get(label) or self._clock()
        )

    def _set(self, name: str, values: Mapping[str, float]) -> None:
        for label, value in values.items():
            self._gauges[name].labels(rank=label).set(value)
