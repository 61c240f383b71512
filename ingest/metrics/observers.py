"""What watchers and consolidators tell Prometheus: ranks, cubes, the disk, and how `gc` ended last.

Both tell what rules have found: how often, and where last. A series for each tensor or step would be
unbounded. So the step is a value: an alert shows it, and with it and the rank, `dump-ingest` shows the
tensor.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge

from ingest.consolidating.consolidator import CommitsListed, StepsConsolidated
from ingest.disk import DiskSeen
from ingest.dispatch.submitter import StepCommitted, StepFailed, StepStale, TaskRetried
from ingest.dispatch.window import WorkerReplaced
from ingest.dump_retention.policy import NO_NEWS, ReadBackFailed, RetentionSeen, SourceDeleted
from ingest.findings.stored import SeriesRead
from ingest.layouts.base import Listing, ProblemKind
from ingest.layouts.black_box import BlackBoxes, RingFound, RingState
from ingest.metrics.server import OTHER, CommitsBehind, Declare, ProcessMetrics, RankLabels, Stragglers
from ingest.steps.events import (
    AnomalousCommitRead,
    DependencyDown,
    KeepReason,
    SourceKept,
    StoreIncident,
    TensorsDropped,
)
from ingest.steps.watcher import DumpState
from ingest.store_gc.execute import GcRunsRead
from workers.errors import REASONS
from workers.events import Event
from workers.model import StepKey
from workers.store.model import Totals
from workers.tasks.metrics import StoreMetrics

#: How many rules have series of their own. Further ones count as one.
MAX_RULES = 256
#: How many pairs of a rank and a rule have series of their own.
MAX_PLACES = 1024
#: The rank of a finding about several ranks together.
ALL_RANKS = "all"


class _FindingMetrics:
    """Findings by rule, and the step of the last one by rank and rule.

    At most MAX_RULES + 1 series, and two for each of MAX_PLACES + MAX_RULES + 1.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float],
        rules: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._clock = clock
        self._rules: set[tuple[str, str]] = set()
        self._places: set[tuple[str, str, str]] = set()
        self._found_at: dict[tuple[str, str, str], float] = {}
        """By rank, rule and severity, as the labels name them: when something was found last."""
        declare = Declare(registry, "dump_ingest_")
        self._total = declare.counter("findings", "Findings of rules.", "rule", "severity")
        labels = ("rank", "rule", "severity")
        self._step = declare.gauge(
            "last_finding_step",
            "Step of the last finding of a rule at a rank; -1 if it belongs to no step.",
            *labels,
        )
        self._time = declare.gauge(
            "last_finding_timestamp_seconds", "Unix time of the last finding of a rule at a rank.", *labels
        )
        self._failures = declare.counter(
            "rule_failures", "Evaluations of rules that failed; the steps were committed without them."
        )
        for rule, severity in rules:
            self._total.labels(rule=self._rule(rule, severity), severity=severity)

    def observe(self, event: Event) -> None:
        match event:
            case StepCommitted(summary=summary):
                totals = totals_of(summary)
                self._count(totals, len(summary.failed_rules))
                self._record_places(summary.key.step, _places_of(summary.key.rank, totals))
            case AnomalousCommitRead(key=key, summary=earlier, committed_at=at):
                self._record_places(key.step, _places_of(key.rank, totals_of(earlier)), at)
            case SeriesRead(step=number, findings=findings, found_at=at):
                self._record_places(number, {(row.rank, row.rule, row.severity) for row in findings}, at)
            case StepsConsolidated(findings=steps):
                for step in steps:
                    result, severity_of = step.result, step.result.severities
                    totals = [
                        (rule, severity_of.get(rule, "warning"), total)
                        for rule, total in result.totals.items()
                    ]
                    self._count(totals, len(result.failed))
                    # Findings that were not stored have no rank.
                    places = {(row.rank, row.rule, row.severity) for row in result.findings}
                    self._record_places(step.step, places)

    def _count(self, totals: Iterable[tuple[str, str, int]], failed: int) -> None:
        for rule, severity, findings in totals:
            self._total.labels(rule=self._rule(rule, severity), severity=severity).inc(max(findings, 0))
        self._failures.inc(failed)

    def _record_places(
        self, step: int | None, places: Iterable[tuple[int | None, str, str]], at: float | None = None
    ) -> None:
        """Record where rules found something.

        Args:
            step: in which step; None for run files.
            places: rank, rule and severity; None for several ranks together.
            at: when; None for now. What is known of a later time stands.
        """
        at = self._clock() if at is None else at
        for rank, rule, severity in places:
            name = self._rule(rule, severity)
            place = (self._rank(rank, name, severity), name, severity)
            if at >= self._found_at.get(place, at):
                self._found_at[place] = at
                self._step.labels(*place).set(-1 if step is None else step)
                self._time.labels(*place).set(at)

    def _rule(self, rule: str, severity: str) -> str:
        if (rule, severity) not in self._rules and len(self._rules) >= MAX_RULES:
            return OTHER
        self._rules.add((rule, severity))
        return rule

    def _rank(self, rank: int | None, rule: str, severity: str) -> str:
        if rank is None:
            return ALL_RANKS
        place = (str(rank), rule, severity)
        if place not in self._places and len(self._places) >= MAX_PLACES:
            return OTHER
        self._places.add(place)
        return str(rank)


#: Counted in place of rules if no rules are evaluated.
COUNTED = (
    ("nan", "critical"),
    ("inf", "critical"),
    ("overflow", "warning"),
    ("disagreement", "warning"),
)


def totals_of(summary: Totals) -> list[tuple[str, str, int]]:
    """Return rule, severity and number of findings in a step of a rank.

    Without rules, they are what its commit counts anyway.
    """
    if summary.rules:
        severity_of = summary.severities
        return [
            (rule, severity_of.get(rule, "warning"), findings) for rule, findings in summary.findings.items()
        ]
    counts = (summary.nan_tensors, summary.pos_inf_tensors, summary.overflows, summary.disagreements)
    return [(*rule, count) for rule, count in zip(COUNTED, counts, strict=True)]


def _places_of(rank: int, totals: Iterable[tuple[str, str, int]]) -> list[tuple[int | None, str, str]]:
    return [(rank, rule, severity) for rule, severity, findings in totals if findings > 0]


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

    At most two series for each of MAX_RANKS ranks and for all others together, those of `_FindingMetrics`
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
        self._clock = clock
        self._labels = RankLabels()
        self._waiting_since: dict[int, float] = {}
        self._newest, self._began = -1, 0.0
        self._commits_behind = CommitsBehind()
        groups = (
            ProcessMetrics(registry, clock, store, expected_ranks, finishes=finishes),
            _FindingMetrics(registry, clock, rules),
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


_PREFIX = "dump_ingest_watcher_"
_STEP_SECONDS = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
#: A backlog that a watcher finds when it starts may be days old.
_DELAY_SECONDS = (1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)
_KINDS = ("nan", "pos_inf", "neg_inf")

#: Counters without ranks: their text, and the values of the label that some have; see `_counted`.
_COUNTERS: dict[str, tuple[str, str, Iterable[str]]] = {
    "commits": ("Steps committed.", "status", ("complete", "partial")),
    "commits_without_tensors": (
        "Steps committed without the payloads of their tensors, because the disk was nearly full.",
        "",
        (),
    ),
    "quarantined_files": ("Files committed as quarantined.", "", ()),
    "statistics_disagreements": (
        "Tensors whose statistics, as the dump reports them, differ from the computed ones.",
        "",
        (),
    ),
    "committed_source_bytes": ("Source bytes committed.", "", ()),
    "committed_stored_bytes": ("Bytes stored for them.", "", ()),
    "step_failures": ("Steps given up for now.", "reason", REASONS),
    "task_retries": ("Tasks submitted again.", "reason", REASONS),
    "troubles": ("Times that the store or the cluster was not available.", "reason", REASONS),
    "workers_replaced": (
        "Workers that were replaced because a task on them did not come to an end.",
        "",
        (),
    ),
    "source_deleted_files": ("Dump files deleted after they were read back from the store.", "", ()),
    "source_deleted_bytes": ("Bytes of those files.", "", ()),
    "source_kept_steps": (
        "Times that files of a committed step had to stay in the dump.",
        "reason",
        sorted(reason.value for reason in set(KeepReason) - NO_NEWS),
    ),
    "rings_found": ("Rings of black boxes that processes which died have left in the dump.", "", ()),
    "incidents": (
        "Steps with an anomaly that the step before did not have, while `black_box` is set.",
        "tensors",
        ("kept", "beyond_limit"),
    ),
    "dropped_steps": ("Steps that have left the black box in the store without their tensors.", "", ()),
    "dropped_bytes": ("Stored bytes of those tensors.", "", ()),
    "read_back_failures": (
        "Committed steps that could not be read back; nothing of them was deleted.",
        "reason",
        REASONS,
    ),
}
_OF_WATCHED_RANKS = {
    "oldest_pending_timestamp_seconds": "Unix time of the newest change in the oldest step that is not "
    "committed; now, if none is pending. The lag is time() minus this.",
    "newest_step": "Highest step that has files or is committed; -1 for none.",
    "committed_step": "Highest step that is committed; -1 for none.",
    "last_commit_timestamp_seconds": "Unix time of the last commit by this process; 0 for none.",
    "steps_behind": "Steps that other ranks have written since this one wrote last.",
    "pending_steps": "Steps that are not committed as they are now.",
    "pending_files": "Files of those steps.",
    "pending_bytes": "Bytes of those files.",
}
_OF_BOXES: dict[str, tuple[str, Callable[[RingState], float], Callable[[Iterable[float]], float]]] = {
    "box_steps": (
        "Steps whose elements the black box of a rank would save now.",
        lambda ring: len(ring.steps),
        min,
    ),
    "box_ring_bytes": ("Memory or disk that its ring takes.", lambda ring: ring.nbytes, sum),
    "box_saved_bytes": (
        "Bytes of elements that its incidents have taken.",
        lambda ring: ring.saved_nbytes,
        sum,
    ),
    "box_left_out_tensors": (
        "Tensors that lack elements, or were not recorded, because ring or queue were full.",
        lambda ring: ring.left_out,
        sum,
    ),
    "box_lost_steps": (
        "Steps that could not be written, or only in part, as on a full disk.",
        lambda ring: ring.lost,
        sum,
    ),
    "box_overhead_ratio": (
        "What the recorder has cost, relative to the steps without it.",
        lambda ring: ring.overhead,
        max,
    ),
    "box_told_timestamp_seconds": (
        "Unix time of these figures; a process that lives tells them each second.",
        lambda ring: ring.at,
        min,
    ),
}
_OF_DISK = {
    "disk_free_bytes": "Bytes that may still be written to the file system of the dump.",
    "disk_size_bytes": "Bytes of the file system of the dump.",
    "disk_free_inodes": "Files that may still be created in the file system of the dump.",
    "disk_inodes": "Files that the file system of the dump can hold; 0 for no limit.",
}


class WatcherMetrics:
    """Everything about the ranks that one watcher looks after.

    At most 22 series for each of MAX_RANKS ranks and for all others together, those of `_FindingMetrics`
    and `StoreMetrics`, and about a hundred.
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
        groups = (
            ProcessMetrics(registry, clock, store, expected_ranks, finishes=finishes),
            _CounterMetrics(registry, clock),
            _RankMetrics(registry, clock),
            _FindingMetrics(registry, clock, rules),
            _DiskMetrics(registry),
            _BoxMetrics(registry),
            StoreMetrics(registry),
        )
        self._observers = [group.observe for group in groups]

    def observe(self, event: Event) -> None:
        """Take in an event of the service, or of the data plane in this process."""
        for observe in self._observers:
            observe(event)


class _CounterMetrics:
    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._clock = clock
        declare = Declare(registry, _PREFIX)
        self._counters = {
            name: declare.counter(name, text, *filter(None, [label]), values=values)
            for name, (text, label, values) in _COUNTERS.items()
        }
        self._seconds = declare.histogram(
            "step_duration_seconds", "From the start of work on a step to its commit.", _STEP_SECONDS
        )
        self._delay = declare.histogram(
            "commit_delay_seconds",
            "From the modification time of the newest file of a step to its commit.",
            _DELAY_SECONDS,
        )

    def observe(self, event: Event) -> None:
        for name, amount, value in _counted(event):
            counter = self._counters[name]
            (counter.labels(value) if value else counter).inc(amount)
        if isinstance(event, StepCommitted):
            self._seconds.observe(event.seconds)
            newest = max((entry.source.mtime_ns for entry in event.plan.entries), default=0) / 1e9
            if newest:
                self._delay.observe(max(self._clock() - newest, 0))


def _counted(event: Event) -> Iterator[tuple[str, int, str]]:
    """Yield what an event adds to which counter, and under which reason or status; "" for none."""
    match event:
        case StepCommitted(summary=summary, plan=plan):
            yield "commits", 1, summary.status
            yield "commits_without_tensors", bool(plan.without_tensors), ""
            yield "quarantined_files", summary.quarantined, ""
            yield "statistics_disagreements", summary.disagreements, ""
            yield "committed_source_bytes", summary.raw_bytes, ""
            yield "committed_stored_bytes", summary.stored_bytes, ""
        case StepFailed(error=error):
            yield "step_failures", 1, error.reason
        case StepStale():
            yield "task_retries", 1, "source_changed"
        case TaskRetried(error=error):
            yield "task_retries", 1, error.reason
        case DependencyDown(error=error):
            yield "troubles", 1, error.reason
        case WorkerReplaced():
            yield "workers_replaced", 1, ""
        case _:
            yield from _counted_of_kept(event)


def _counted_of_kept(event: Event) -> Iterator[tuple[str, int, str]]:
    match event:
        case SourceDeleted(dry_run=False):
            yield "source_deleted_files", event.files, ""
            yield "source_deleted_bytes", event.nbytes, ""
        case SourceKept(reason=reason):
            yield "source_kept_steps", 1, reason.value
        case ReadBackFailed(error=error):
            yield "read_back_failures", 1, error.reason
        case RingFound():
            yield "rings_found", 1, ""
        case StoreIncident(is_kept=is_kept):
            yield "incidents", 1, "kept" if is_kept else "beyond_limit"
        case TensorsDropped(nbytes=nbytes):
            yield "dropped_steps", 1, ""
            yield "dropped_bytes", nbytes, ""


class _RankMetrics:
    """Lag, backlog, newest steps and anomalies by rank; fifteen series for each label of a rank."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._labels = RankLabels(on_new=[self._create])
        self._oldest: dict[str, float] = {}
        """By label: when the oldest pending step last changed; 0 if none is pending."""
        self._newest: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        """By rank: the highest committed step. It stays when the source is cleaned away."""
        self._committed_at: dict[int, float] = {}
        self._pending: dict[int, dict[StepKey, Listing]] = {}
        """By rank: its steps that are not committed, as the last scan listed them."""
        self._stragglers = Stragglers()
        declare, of_dump = Declare(registry, _PREFIX), Declare(registry, "dump_ingest_")
        self._gauges = declare.gauges(_OF_WATCHED_RANKS, "rank")
        self._look = declare.gauge(
            "last_look_timestamp_seconds", "Unix time of the last scan; 0 before the dump exists."
        )
        self._ranks = declare.gauge("ranks", "Ranks that have, or had, files.")
        self._problems = declare.gauge(
            "problems", "Files and directories that cannot be ingested, by what keeps them from it.", "kind"
        )
        for kind in ProblemKind:
            self._problems.labels(kind=kind.value)
        self._elements = of_dump.counter(
            "tensor_anomalous_elements", "NaN and infinite elements in committed tensors.", "rank", "kind"
        )
        self._tensors = of_dump.counter(
            "tensor_anomalies", "Committed tensors that hold NaN or infinite elements.", "rank", "kind"
        )
        self._overflows = of_dump.counter(
            "overflow_records", "Overflow records of the hardware in committed steps.", "rank"
        )

    def observe(self, event: Event) -> None:
        match event:
            case DumpState():
                self._observe_scan(event)
            case StepCommitted(summary=summary):
                self._observe_commit(summary.key)
                label = self._labels.of(summary.key.rank)
                self._overflows.labels(rank=label).inc(summary.overflows)
                for kind in _KINDS:
                    self._elements.labels(rank=label, kind=kind).inc(getattr(summary, f"{kind}_count"))
                    self._tensors.labels(rank=label, kind=kind).inc(getattr(summary, f"{kind}_tensors"))

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
        for rank, steps in steps_of.items():
            for key in steps:
                if key not in dump.pending and key not in dump.unlisted:
                    self._record_committed(key)
            highest = max((key.order[0] for key in steps), default=-1)
            self._newest[rank] = max(highest, self._committed.get(rank, -1))
        self._show("newest_step", self._newest, min)
        self._show("committed_step", dict.fromkeys(steps_of, -1) | self._committed, min)
        self._show("last_commit_timestamp_seconds", dict.fromkeys(steps_of, 0.0) | self._committed_at, min)
        self._show_backlog(self._pending)
        self._stragglers.record_listings(dump.present.values())
        if not dump.unlisted:  # nothing is known of what is still to be listed
            self._show("steps_behind", self._stragglers.steps_behind(dump.present), max)

    def _show_backlog(self, pending_of: Mapping[int, Mapping[StepKey, Listing]]) -> None:
        listings = {rank: list(pending.values()) for rank, pending in pending_of.items()}
        files = {rank: sum(len(listing.files) for listing in own) for rank, own in listings.items()}
        nbytes = {rank: sum(listing.nbytes for listing in own) for rank, own in listings.items()}
        self._show("pending_steps", {rank: len(own) for rank, own in listings.items()}, sum)
        self._show("pending_files", files, sum)
        self._show("pending_bytes", nbytes, sum)
        oldest = {
            rank: pending[min(pending, key=lambda key: key.order)].newest_change
            for rank, pending in pending_of.items()
            if pending
        }
        self._oldest |= {self._labels.of(rank): 0.0 for rank in pending_of}
        self._oldest |= self._labels.combine(oldest, min)

    def _observe_commit(self, key: StepKey) -> None:
        label = self._labels.of(key.rank)
        self._record_committed(key)
        self._pending.get(key.rank, {}).pop(key, None)
        self._committed_at[key.rank] = self._clock()
        if label != OTHER:  # the next scan shows what ranks have together
            self._show("last_commit_timestamp_seconds", {key.rank: self._committed_at[key.rank]}, min)
            self._show("committed_step", {key.rank: self._committed[key.rank]}, min)
            self._show_backlog({key.rank: self._pending.get(key.rank, {})})

    def _record_committed(self, key: StepKey) -> None:
        self._committed[key.rank] = max(self._committed.get(key.rank, -1), key.order[0])

    def _create(self, label: str) -> None:
        for gauge in self._gauges.values():
            gauge.labels(rank=label)
        self._gauges["oldest_pending_timestamp_seconds"].labels(rank=label).set_function(
            lambda: self._oldest.get(label) or self._clock()
        )
        self._overflows.labels(rank=label)
        for kind in _KINDS:
            self._elements.labels(rank=label, kind=kind)
            self._tensors.labels(rank=label, kind=kind)

    def _show(
        self, name: str, values: Mapping[int, float], together: Callable[[Iterable[float]], float]
    ) -> None:
        for label, value in self._labels.combine(values, together).items():
            self._gauges[name].labels(rank=label).set(value)


class _BoxMetrics:
    """The black boxes in the processes of the job; seven series for each label of a rank that has one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._labels = RankLabels()
        declare = Declare(registry, _PREFIX)
        self._gauges = {
            declare.gauge(name, text, "rank"): (value, together)
            for name, (text, value, together) in _OF_BOXES.items()
        }
        self._incidents = declare.gauge("box_incidents", "Incidents of black boxes in this run.")

    def observe(self, event: Event) -> None:
        if not isinstance(event, BlackBoxes):
            return
        self._incidents.set(len(event.incidents))
        for gauge, (value, together) in self._gauges.items():
            gauge.clear()
            values = {ring.rank: value(ring) for ring in event.rings}
            for label, one in self._labels.combine(values, together).items():
                gauge.labels(rank=label).set(one)


class _DiskMetrics:
    """Space and pressure of the disk of a dump, and what is still to be deleted there. Seven series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._declare = Declare(registry, _PREFIX)
        self._pressure = self._declare.gauge(
            "under_pressure", "1 while less of the disk of the dump is free than `pressure_free`.", "policy"
        )
        self._steps = self._declare.gauge(
            "read_back_pending_steps", "Committed steps that wait to be read back and deleted."
        )
        self._bytes = self._declare.gauge("read_back_pending_bytes", "Bytes of their files.")
        self._space: dict[str, Gauge] = {}

    def observe(self, event: Event) -> None:
        match event:
            case RetentionSeen(steps=steps, nbytes=nbytes):
                self._steps.set(steps)
                self._bytes.set(nbytes)
            case DiskSeen(space=space):
                self._pressure.labels(policy=event.policy).set(event.under_pressure)
                # Not before there is a value: an alert would take 0 for a full disk.
                if not self._space:
                    self._space = self._declare.gauges(_OF_DISK)
                values = (space.free_nbytes, space.nbytes, space.free_inodes, space.inodes)
                for gauge, value in zip(self._space.values(), values, strict=True):
                    gauge.set(value)
