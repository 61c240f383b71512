"""What a watcher has committed, how long that took, and what is abnormal in it."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from ingest.dispatch.outcomes import StepCommitted
from ingest.metrics.declare import Declare
from ingest.metrics.ranks import RankLabels
from workers.events import Event
from workers.store.model import CommitSummary
from workers.tasks.model import StepPlan

_SECONDS = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
#: A backlog that a watcher finds when it starts may be days old.
_DELAY_SECONDS = (1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)
_KINDS = ("nan", "pos_inf", "neg_inf")
_STATUSES = ("complete", "partial")


class CommitMetrics:
    """Commits, their bytes, durations and anomalies. Seven series for each label of a rank, and forty."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float], labels: RankLabels) -> None:
        """Register everything."""
        self._clock = clock
        self._labels = labels
        labels.on_new.append(self._create)
        of_dump, of_watcher = Declare(registry, "dump_ingest_"), Declare(registry, "dump_ingest_watcher_")
        self._elements = of_dump.counter(
            "tensor_anomalous_elements", "NaN and infinite elements in committed tensors.", "rank", "kind"
        )
        self._tensors = of_dump.counter(
            "tensor_anomalies", "Committed tensors that hold NaN or infinite elements.", "rank", "kind"
        )
        self._overflows = of_dump.counter(
            "overflow_records", "Overflow records of the hardware in committed steps.", "rank"
        )
        self._commits = of_watcher.counter_by("status", _STATUSES, "commits", "Steps committed.")
        self._without_tensors = of_watcher.counter(
            "commits_without_tensors",
            "Steps committed without the payloads of their tensors, because the disk was nearly full.",
        )
        self._quarantined = of_watcher.counter("quarantined_files", "Files committed as quarantined.")
        self._disagreements = of_watcher.counter(
            "statistics_disagreements",
            "Tensors whose statistics, as the dump reports them, differ from the computed ones.",
        )
        self._raw = of_watcher.counter("committed_source_bytes", "Source bytes committed.")
        self._stored = of_watcher.counter("committed_stored_bytes", "Bytes stored for them.")
        self._seconds = of_watcher.histogram(
            "step_duration_seconds", "From the start of work on a step to its commit.", _SECONDS
        )
        self._delay = of_watcher.histogram(
            "commit_delay_seconds",
            "From the modification time of the newest file of a step to its commit.",
            _DELAY_SECONDS,
        )

    def observe(self, event: Event) -> None:
        """Count a commit."""
        if isinstance(event, StepCommitted):
            self._observe_plan(event.plan)
            self._observe_summary(event.summary)
            self._seconds.observe(event.seconds)

    def _observe_plan(self, plan: StepPlan) -> None:
        newest = max((entry.source.mtime_ns for entry in plan.entries), default=0) / 1e9
        if newest:
            self._delay.observe(max(self._clock() - newest, 0))
        self._without_tensors.inc(bool(plan.without_tensors))

    def _observe_summary(self, summary: CommitSummary) -> None:
        label = self._labels.of(summary.key.rank)
        self._commits.labels(status=summary.status).inc()
        self._quarantined.inc(summary.quarantined)
        self._overflows.labels(rank=label).inc(summary.overflows)
        self._disagreements.inc(summary.disagreements)
        self._raw.inc(summary.raw_bytes)
        self._stored.inc(summary.stored_bytes)
        for kind in _KINDS:
            self._elements.labels(rank=label, kind=kind).inc(getattr(summary, f"{kind}_count"))
            self._tensors.labels(rank=label, kind=kind).inc(getattr(summary, f"{kind}_tensors"))

    def _create(self, label: str) -> None:
        """Create the series of a label."""
        self._overflows.labels(rank=label)
        for kind in _KINDS:
            self._elements.labels(rank=label, kind=kind)
            self._tensors.labels(rank=label, kind=kind)
