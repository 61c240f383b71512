"""What the watcher tells Prometheus. Subscribes to what happens in the service.

Bound of series: seven gauges and seven counters per rank of this host, and a constant.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)

from ingest import __version__
from ingest.service import Happening, Trouble
from ingest.submit import StepCommitted, StepFailed, StepStale, TaskRetried
from ingest.watch import View
from workers.errors import REASONS
from workers.model import CommitSummary, StepKey

_SECONDS = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_KINDS = ("nan", "pos_inf", "neg_inf")


class WatcherMetrics:
    """Lag, backlog, commits and anomalies of the ranks that one watcher looks after."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.time) -> None:
        """Register everything on `registry`; `clock` returns Unix time."""
        self._clock = clock
        self._registry = registry
        self._ranks: set[int] = set()
        self._oldest: dict[int, float] = {}
        self._committed: dict[int, int] = {}
        """Highest committed step by rank; it stays when the source is cleaned away."""
        self._gauges = {
            name: Gauge(f"dump_ingest_watcher_{name}", text, ["rank"], registry=registry)
            for name, text in {
                "oldest_pending_timestamp_seconds": "Unix time of the newest change in the oldest step that "
                "is not committed; now, where there is none. The lag is time() minus this.",
                "newest_step": "Highest step that has files.",
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
        self._look = Gauge(
            "dump_ingest_watcher_last_look_timestamp_seconds",
            "Unix time of the last look.",
            registry=registry,
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
        Gauge("dump_ingest_build_info", "1, with the version.", ["version"], registry=registry).labels(
            version=__version__
        ).set(1)
        for reason in REASONS:
            for counter in (self._failures, self._retries, self._troubles):
                counter.labels(reason=reason)
        for status in ("complete", "partial"):
            self._commits.labels(status=status)

    def observe(self, happening: Happening) -> None:
        """Take in one happening of the service."""
        match happening:
            case View():
                self._observe_view(happening)
            case StepCommitted(summary=summary, seconds=seconds):
                self._observe_commit(summary, seconds)
            case StepFailed(error=error):
                self._failures.labels(reason=error.reason).inc()
            case StepStale():
                self._retries.labels(reason="source_changed").inc()
            case TaskRetried(error=error):
                self._retries.labels(reason=error.reason).inc()
            case Trouble(error=error):
                self._troubles.labels(reason=error.reason).inc()

    def _observe_view(self, view: View) -> None:
        self._look.set(self._clock())
        self._problems.set(len(view.problems))
        steps_of: dict[int, list[StepKey]] = {rank: [] for rank in self._ranks}
        for key in view.present:
            self._know(key.rank)
            steps = steps_of.setdefault(key.rank, [])
            if key.step is not None:
                steps.append(key)
        for rank, steps in steps_of.items():
            pending = {key: view.pending[key] for key in steps if key in view.pending}
            for key in steps:
                if key not in pending:
                    self._note_committed(key)
            self._set("newest_step", rank, max((key.order[0] for key in steps), default=-1))
            self._set("committed_step", rank, self._committed.get(rank, -1))
            self._set("pending_steps", rank, len(pending))
            self._set("pending_files", rank, sum(len(listing.files) for listing in pending.values()))
            self._set("pending_bytes", rank, sum(listing.nbytes for listing in pending.values()))
            oldest = min(pending, key=_step_of, default=None)
            self._oldest[rank] = 0.0 if oldest is None else pending[oldest].newest_change

    def _observe_commit(self, summary: CommitSummary, seconds: float) -> None:
        rank = summary.key.rank
        self._know(rank)
        self._commits.labels(status=summary.status).inc()
        self._quarantined.inc(summary.quarantined)
        self._overflows.labels(rank=rank).inc(summary.overflows)
        self._disagreements.inc(summary.disagreements)
        self._raw.inc(summary.raw_bytes)
        self._stored.inc(summary.stored_bytes)
        self._seconds.observe(seconds)
        self._set("last_commit_timestamp_seconds", rank, self._clock())
        self._note_committed(summary.key)
        self._set("committed_step", rank, self._committed[rank])
        for kind in _KINDS:
            self._elements.labels(rank=rank, kind=kind).inc(getattr(summary, f"{kind}_count"))
            self._tensors.labels(rank=rank, kind=kind).inc(getattr(summary, f"{kind}_tensors"))

    def _note_committed(self, key: StepKey) -> None:
        self._committed[key.rank] = max(self._committed.get(key.rank, -1), key.order[0])

    def _know(self, rank: int) -> None:
        if rank in self._ranks:
            return
        self._ranks.add(rank)
        for gauge in self._gauges.values():
            gauge.labels(rank=rank)
        for kind in _KINDS:
            self._elements.labels(rank=rank, kind=kind)
            self._tensors.labels(rank=rank, kind=kind)
        self._overflows.labels(rank=rank)
        self._gauges["oldest_pending_timestamp_seconds"].labels(rank=rank).set_function(
            lambda: self._oldest.get(rank) or self._clock()
        )

    def _set(self, name: str, rank: int, value: float) -> None:
        self._gauges[name].labels(rank=rank).set(value)


def _step_of(key: StepKey) -> tuple[int, int]:
    return key.order


def serve(registry: CollectorRegistry, address: str) -> Callable[[], Any]:
    """Serve `/metrics` at `host:port`; returns a function that stops it.

    Raises:
        OSError: the address is taken.
    """
    host, _, port = address.rpartition(":")
    disable_created_metrics()  # type: ignore[no-untyped-call]  # one series per counter that nobody reads
    server, _thread = start_http_server(int(port), host, registry)
    return server.shutdown
