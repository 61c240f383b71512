"""What a watcher tells Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ingest.disk.pressure import DiskSeen
from ingest.dispatch.outcomes import StepCommitted, StepFailed, StepStale, TaskRetried
from ingest.dump_retention.events import ReadBackFailed, RetentionSeen, SourceDeleted
from ingest.metrics.findings import COUNTED, FindingMetrics, totals_of
from ingest.metrics.ranks import OTHER, RankLabels
from ingest.metrics.retention import RetentionMetrics
from ingest.steps.events import DependencyDown, SourceKept
from ingest.watching.watcher import DumpState
from workers.errors import REASONS
from workers.events import Event
from workers.model import StepKey
from workers.store.model import CommitSummary
from workers.tasks.metrics import StoreMetrics, register_build_info

_SECONDS = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
#: A backlog that a watcher finds when it starts may be days old.
_DELAY_SECONDS = (1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)
_KINDS = ("nan", "pos_inf", "neg_inf")


class WatcherMetrics:
    """Lag, backlog, commits and findings of the ranks that one watcher looks after.

    Bound of series: fourteen for each of MAX_RANKS ranks and once for all others together, those of
    `FindingMetrics`, `RetentionMetrics` and `StoreMetrics`, and about eighty.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.time,
        *,
        rules: Iterable[tuple[str, str]] = COUNTED,
    ) -> None:
        """Register everything on `registry`.

        Args:
            registry: where.
            clock: returns Unix time.
            rules: names and severities of the rules that are evaluated.
        """
        self._clock = clock
        self._registry = registry
        self._labels = RankLabels()
        self._ranks: set[int] = set()
        self._oldest: dict[str, float] = {}
        """By label: when the oldest pending step changed last; 0 for none."""
        self._newest: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        """Highest committed step by rank; it stays when the source is cleaned away."""
        self._committed_at: dict[int, float] = {}
        self._disk: dict[str, Gauge] = {}
        self._findings = FindingMetrics(registry, clock, rules)
        self._store = StoreMetrics(registry)
        self._retention = RetentionMetrics(registry)
        register_build_info(registry)
        self._gauges = {
            name: Gauge(f"dump_ingest_watcher_{name}", text, ["rank"], registry=registry)
            for name, text in {
                "oldest_pending_timestamp_seconds": "Unix time of the newest change in the oldest step that "
                "is not committed; now, where there is none. The lag is time() minus this.",
                "newest_step": "Highest step that has files or is committed; -1 for none.",
                "committed_step": "Highest step that is committed; -1 for none.",
                "last_commit_timestamp_seconds": "Unix time of the last commit; 0 for none by this process.",
                "pending_steps": "Steps that are not committed as they are now.",
                "pending_files": "Files of those steps.",
                "pending_bytes": "Bytes of those files.",
            }.items()
        }
        self._elements = Counter(
            "dump_ingest_tensor_anomalous_elements",
            "NaN and infinite elements in committed tensors.",
            ["rank", "kind"],
            registry=registry,
        )
        self._tensors = Counter(
            "dump_ingest_tensor_anomalies",
            "Committed tensors that hold NaN or infinite elements.",
            ["rank", "kind"],
            registry=registry,
        )
        self._commits = Counter(
            "dump_ingest_watcher_commits", "Steps committed.", ["status"], registry=registry
        )
        self._without_tensors = Counter(
            "dump_ingest_watcher_commits_without_tensors",
            "Steps committed without the payloads of their tensors, for the disk was nearly full.",
            registry=registry,
        )
        self._pressure = Gauge(
            "dump_ingest_watcher_under_pressure",
            "1 while less of the disk of the dump is free than `pressure_free`.",
            ["policy"],
            registry=registry,
        )
        self._failures = Counter(
            "dump_ingest_watcher_step_failures", "Steps given up for now.", ["reason"], registry=registry
        )
        self._retries = Counter(
            "dump_ingest_watcher_task_retries", "Tasks submitted again.", ["reason"], registry=registry
        )
        self._quarantined = Counter(
            "dump_ingest_watcher_quarantined_files", "Files committed as quarantined.", registry=registry
        )
        self._overflows = Counter(
            "dump_ingest_overflow_records",
            "Overflow records of the hardware in committed steps.",
            ["rank"],
            registry=registry,
        )
        self._disagreements = Counter(
            "dump_ingest_watcher_statistics_disagreements",
            "Tensors whose statistics, as the dump gives them, differ from the computed ones.",
            registry=registry,
        )
        self._raw = Counter(
            "dump_ingest_watcher_committed_source_bytes", "Source bytes committed.", registry=registry
        )
        self._stored = Counter(
            "dump_ingest_watcher_committed_stored_bytes", "Bytes stored for them.", registry=registry
        )
        self._seconds = Histogram(
            "dump_ingest_watcher_step_duration_seconds",
            "From a step being taken on to its commit.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._delay = Histogram(
            "dump_ingest_watcher_commit_delay_seconds",
            "From the newest file of a step, by its time, to its commit.",
            buckets=_DELAY_SECONDS,
            registry=registry,
        )
        self._look = Gauge(
            "dump_ingest_watcher_last_look_timestamp_seconds",
            "Unix time of the last look; 0 while there is no dump yet.",
            registry=registry,
        )
        self._known_ranks = Gauge(
            "dump_ingest_watcher_ranks", "Ranks that have, or had, files.", registry=registry
        )
        self._problems = Gauge(
            "dump_ingest_watcher_problems",
            "Files and directories that cannot be taken in.",
            registry=registry,
        )
        self._troubles = Counter(
            "dump_ingest_watcher_troubles",
            "Times that store or cluster were not there.",
            ["reason"],
            registry=registry,
        )
        for reason in REASONS:
            for counter in (self._failures, self._retries, self._troubles):
                counter.labels(reason=reason)
        for status in ("complete", "partial"):
            self._commits.labels(status=status)

    def observe_event(self, event: Event) -> None:
        """Take in what the data plane does in this process."""
        self._store.observe(event)

    def observe(self, event: Event) -> None:
        """Take in one event of the service."""
        match event:
            case DumpState():
                self._observe_view(event)
            case SourceDeleted() | SourceKept() | ReadBackFailed() | RetentionSeen():
                self._retention.observe(event)
            case DiskSeen():
                self._observe_disk(event)
            case StepCommitted(plan=plan, summary=summary, seconds=seconds):
                newest = max((entry.source.mtime_ns for entry in plan.entries), default=0) / 1e9
                if newest:
                    self._delay.observe(max(self._clock() - newest, 0))
                self._observe_commit(summary, seconds)
                self._without_tensors.inc(bool(plan.without_tensors))
            case StepFailed(error=error):
                self._failures.labels(reason=error.reason).inc()
            case StepStale():
                self._retries.labels(reason="source_changed").inc()
            case TaskRetried(error=error):
                self._retries.labels(reason=error.reason).inc()
            case DependencyDown(error=error):
                self._troubles.labels(reason=error.reason).inc()

    def _observe_view(self, view: DumpState) -> None:
        self._look.set(self._clock())
        self._problems.set(len(view.problems))
        steps_of: dict[int, list[StepKey]] = {rank: [] for rank in self._ranks}
        for key in sorted(view.there, key=lambda key: key.rank):
            self._know(key.rank)
            steps = steps_of.setdefault(key.rank, [])
            if key.step is not None:
                steps.append(key)
        self._known_ranks.set(len(self._ranks))
        oldest: dict[int, float] = {}
        counts: dict[str, dict[int, float]] = {"pending_steps": {}, "pending_files": {}, "pending_bytes": {}}
        for rank, steps in steps_of.items():
            pending = {key: view.pending[key] for key in steps if key in view.pending}
            for key in steps:
                if key not in pending and key not in view.unlisted:
                    self._note_committed(key)
            highest = max((key.order[0] for key in steps), default=-1)
            self._newest[rank] = max(highest, self._committed.get(rank, -1))
            counts["pending_steps"][rank] = len(pending)
            counts["pending_files"][rank] = sum(len(listing.files) for listing in pending.values())
            counts["pending_bytes"][rank] = sum(listing.nbytes for listing in pending.values())
            if pending:
                oldest[rank] = pending[min(pending, key=_step_of)].newest_change
        self._set("newest_step", self._labels.lowest(self._newest))
        self._set("committed_step", self._labels.lowest(dict.fromkeys(self._ranks, -1) | self._committed))
        never = dict.fromkeys(self._ranks, 0.0)
        self._set("last_commit_timestamp_seconds", self._labels.lowest(never | self._committed_at))
        for name, values in counts.items():
            self._set(name, self._labels.total(values))
        found = self._labels.lowest(oldest)
        self._oldest = {label: found.get(label, 0.0) for label in {*self._oldest, *found}}

    def _observe_commit(self, summary: CommitSummary, seconds: float) -> None:
        rank = summary.key.rank
        self._know(rank)
        label = self._labels.of(rank)
        self._commits.labels(status=summary.status).inc()
        self._quarantined.inc(summary.quarantined)
        self._overflows.labels(rank=label).inc(summary.overflows)
        self._disagreements.inc(summary.disagreements)
        self._raw.inc(summary.raw_bytes)
        self._stored.inc(summary.stored_bytes)
        self._seconds.observe(seconds)
        self._note_committed(summary.key)
        self._committed_at[rank] = self._clock()
        if label != OTHER:  # what ranks have together, the next look shows
            self._set("last_commit_timestamp_seconds", {label: self._committed_at[rank]})
            self._set("committed_step", {label: self._committed[rank]})
        for kind in _KINDS:
            self._elements.labels(rank=label, kind=kind).inc(getattr(summary, f"{kind}_count"))
            self._tensors.labels(rank=label, kind=kind).inc(getattr(summary, f"{kind}_tensors"))
        self._findings.observe(rank, summary.key.step, totals_of(summary))
        self._findings.count_failures(len(summary.failed_rules))

    def _observe_disk(self, seen: DiskSeen) -> None:
        values = {
            "free_bytes": seen.space.free_nbytes,
            "size_bytes": seen.space.nbytes,
            "free_inodes": seen.space.free_inodes,
            "inodes": seen.space.inodes,
        }
        self._pressure.labels(policy=seen.policy).set(seen.under_pressure)
        for name, value in values.items():
            self._disk_gauge(name).set(value)

    def _disk_gauge(self, name: str) -> Gauge:
        # Not before there is a value: an alert would take 0 for a full disk.
        if name not in self._disk:
            text = {
                "free_bytes": "Bytes that may still be written to the file system of the dump.",
                "size_bytes": "Bytes of the file system of the dump.",
                "free_inodes": "Files that may still be made in the file system of the dump.",
                "inodes": "Files that the file system of the dump can hold; 0 for no limit.",
            }[name]
            self._disk[name] = Gauge(f"dump_ingest_watcher_disk_{name}", text, registry=self._registry)
        return self._disk[name]

    def _note_committed(self, key: StepKey) -> None:
        self._committed[key.rank] = max(self._committed.get(key.rank, -1), key.order[0])

    def _know(self, rank: int) -> None:
        if rank in self._ranks:
            return
        self._ranks.add(rank)
        if rank in self._labels:
            return
        label = self._labels.of(rank)
        for gauge in self._gauges.values():
            gauge.labels(rank=label)
        for kind in _KINDS:
            self._elements.labels(rank=label, kind=kind)
            self._tensors.labels(rank=label, kind=kind)
        self._overflows.labels(rank=label)
        self._gauges["oldest_pending_timestamp_seconds"].labels(rank=label).set_function(
            lambda: self._oldest.get(label) or self._clock()
        )

    def _set(self, name: str, values: Mapping[str, float]) -> None:
        for label, value in values.items():
            self._gauges[name].labels(rank=label).set(value)


def _step_of(key: StepKey) -> tuple[int, int]:
    return key.order
