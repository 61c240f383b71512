"""What watchers, workers and consolidators export: that it is there from the beginning, and bounded."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from ingest.consolidating.consolidator import CommitsListed, Consolidator, StepsConsolidated
from ingest.disk.pressure import Pressure
from ingest.disk.space import DiskSpace, space_at
from ingest.dispatch.outcomes import StepCommitted, StepFailed
from ingest.findings.series import StepFindings
from ingest.layouts.base import Listing
from ingest.metrics import ConsolidatorMetrics, WatcherMetrics, serve
from ingest.metrics.findings import MAX_PLACES, MAX_RULES, FindingMetrics, RuleTotal
from ingest.metrics.ranks import MAX_RANKS, OTHER
from ingest.steps.events import DependencyDown
from ingest.watching.watcher import DumpState
from tests.pipeline import ingest_directly, plan_all
from tests.servers.process import free_port, http_get
from workers import events
from workers.errors import REASONS, ClusterError, StoreUnavailable, UsageError
from workers.model import SourceFile, StepKey
from workers.store.events import STORE_OPS, StoreRequested
from workers.store.model import CommitSummary, Evaluated, Finding
from workers.store.objects import ObjectStore, resolve
from workers.tasks.metrics import StoreMetrics, WorkerMetrics

NOW = 1_800_000_000.0


def listing(rank: int, step: int | None, *, files: int = 1, newest: float = NOW) -> Listing:
    """Return a step as a look shows it."""
    sources = tuple(SourceFile(f"rank_{rank}/{step}/{number}.npy", 100, 0) for number in range(files))
    return Listing(StepKey(rank, step), sources, newest, later_begun=False)


def view(present: list[Listing], pending: list[Listing]) -> DumpState:
    return DumpState({one.key: one for one in present}, {one.key: one for one in pending}, ())


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def series(registry: CollectorRegistry) -> int:
    """Return how many series a scrape shows; `serve` turns off those of creation times."""
    names = (sample.name for family in registry.collect() for sample in family.samples)
    return sum(not name.endswith("_created") for name in names)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def summary(dumps: dict[str, Path], tmp_path: Path) -> CommitSummary:
    """The totals of a real step with NaN."""
    found = ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr")
    return replace(
        next(one for one in found if one.key == StepKey(1, 2)), rules="", findings={}, severities={}
    )


class TestWatcher:
    def test_every_counter_without_a_rank_is_there_before_there_is_a_dump(
        self, registry: CollectorRegistry
    ) -> None:
        """An alert on an increase does not see the first one otherwise."""
        WatcherMetrics(registry, rules=[("nan", "critical")])
        for reason in REASONS:
            for name in ("step_failures", "task_retries", "troubles"):
                assert value(registry, f"dump_ingest_watcher_{name}_total", reason=reason) == 0
        assert value(registry, "dump_ingest_findings_total", rule="nan", severity="critical") == 0
        assert value(registry, "dump_ingest_watcher_quarantined_files_total") == 0
        assert value(registry, "dump_ingest_rule_failures_total") == 0
        for op in STORE_OPS:
            labels = {"op": op, "reason": "store_denied"}
            assert value(registry, "dump_ingest_store_request_errors_total", **labels) == 0

    def test_lag_is_that_of_the_oldest_step_of_each_rank(self, registry: CollectorRegistry) -> None:
        metrics = WatcherMetrics(registry, lambda: NOW)
        steps = [listing(0, 1), listing(0, 2), listing(1, 1, newest=NOW - 50), listing(1, 2, newest=NOW - 9)]
        metrics.observe(view(steps, steps[2:]))
        name = "dump_ingest_watcher_oldest_pending_timestamp_seconds"
        assert value(registry, name, rank="0") == NOW
        assert value(registry, name, rank="1") == NOW - 50
        assert value(registry, "dump_ingest_watcher_committed_step", rank="0") == 2
        assert value(registry, "dump_ingest_watcher_committed_step", rank="1") == -1
        assert value(registry, "dump_ingest_watcher_pending_bytes", rank="1") == 200

    def test_a_rank_whose_dumps_were_cleaned_away_has_not_fallen_behind(
        self, registry: CollectorRegistry
    ) -> None:
        metrics = WatcherMetrics(registry, lambda: NOW)
        metrics.observe(view([listing(0, 7), listing(1, 7)], []))
        metrics.observe(view([listing(0, 7)], []))
        for rank in ("0", "1"):
            assert value(registry, "dump_ingest_watcher_newest_step", rank=rank) == 7

    def test_a_finding_is_told_with_its_step_as_the_value(
        self, registry: CollectorRegistry, summary: CommitSummary, dumps: dict[str, Path], tmp_path: Path
    ) -> None:
        metrics = WatcherMetrics(registry, lambda: NOW)
        plan = next(p for p in plan_all(dumps["nan-log-2rank"] / "dump", tmp_path) if p.key == summary.key)
        metrics.observe(StepCommitted(plan, summary, 0.5))
        labels = {"rank": "1", "rule": "nan", "severity": "critical"}
        assert value(registry, "dump_ingest_last_finding_step", **labels) == 2
        assert value(registry, "dump_ingest_last_finding_timestamp_seconds", **labels) == NOW
        assert value(registry, "dump_ingest_findings_total", rule="nan", severity="critical") == 5

        by_rule = replace(
            summary,
            rules="0123456789abcdef",
            findings={"masked": 3},
            severities={"masked": "info"},
            failed_rules={"broken": "division by zero"},
        )
        metrics.observe(StepCommitted(plan, by_rule, 0.5))
        assert value(registry, "dump_ingest_findings_total", rule="nan", severity="critical") == 5
        assert value(registry, "dump_ingest_findings_total", rule="masked", severity="info") == 3
        assert value(registry, "dump_ingest_rule_failures_total") == 1

    def test_failures_and_troubles_are_counted_by_reason(
        self, registry: CollectorRegistry, dumps: dict[str, Path], tmp_path: Path
    ) -> None:
        metrics = WatcherMetrics(registry)
        plan = plan_all(dumps["dtypes-1rank"] / "dump", tmp_path)[0]
        metrics.observe(StepFailed(plan, StoreUnavailable("away")))
        metrics.observe(DependencyDown(ClusterError("away")))
        assert value(registry, "dump_ingest_watcher_step_failures_total", reason="store_unavailable") == 1
        assert value(registry, "dump_ingest_watcher_troubles_total", reason="cluster") == 1

    def test_disk_is_shown_from_the_first_look_on_and_never_as_full_before(
        self, registry: CollectorRegistry, tmp_path: Path
    ) -> None:
        metrics = WatcherMetrics(registry)
        assert value(registry, "dump_ingest_watcher_disk_free_bytes") is None
        metrics.observe(view([], []))
        assert value(registry, "dump_ingest_watcher_disk_free_bytes") is None
        space = space_at(tmp_path)
        assert space is not None
        metrics.observe(Pressure().see(space))
        free = value(registry, "dump_ingest_watcher_disk_free_bytes")
        size = value(registry, "dump_ingest_watcher_disk_size_bytes")
        assert free is not None
        assert size is not None
        assert 0 < free < size
        assert space_at(tmp_path / "gone") is None

    def test_pressure_shows_with_the_policy_that_applies(self, registry: CollectorRegistry) -> None:
        metrics, pressure = WatcherMetrics(registry), Pressure("statistics")
        for free, shown in [(500, 0), (99, 1), (120, 1), (130, 0)]:
            metrics.observe(pressure.see(DiskSpace(free, 1000, 0, 0)))
            assert value(registry, "dump_ingest_watcher_under_pressure", policy="statistics") == shown

    def test_ten_thousand_ranks_of_a_hundred_thousand_tensors_make_a_bounded_number_of_series(
        self, registry: CollectorRegistry, summary: CommitSummary, dumps: dict[str, Path], tmp_path: Path
    ) -> None:
        metrics = WatcherMetrics(registry, lambda: NOW)
        plan = replace(plan_all(dumps["dtypes-1rank"] / "dump", tmp_path)[0], entries=())
        step = listing(0, 5)
        steps = [replace(step, key=StepKey(rank, 5), newest_change=NOW - rank) for rank in range(10_000)]
        metrics.observe(view(steps, steps))
        for rank in range(10_000):
            key = StepKey(rank, 5)
            worst = replace(summary, key=key, tensors=100_000, nan_tensors=100_000, pos_inf_tensors=100_000)
            metrics.observe(StepCommitted(plan, worst, 1.0))
        metrics.observe(view(steps, steps[:5000]))
        count = series(registry)
        print(f"{count} series for 10,000 ranks")
        assert count <= 14 * (MAX_RANKS + 1) + MAX_RULES + 1 + 2 * (MAX_PLACES + MAX_RULES + 1) + 250
        # What the others have together is told of the worst of them, and summed up.
        assert value(registry, "dump_ingest_watcher_pending_steps", rank=OTHER) == 5000 - MAX_RANKS
        oldest = value(registry, "dump_ingest_watcher_oldest_pending_timestamp_seconds", rank=OTHER)
        assert oldest == NOW - 4999
        assert value(registry, "dump_ingest_watcher_ranks") == 10_000
        # A finding has its rank for as long as there are few of them.
        labels = {"rank": "500", "rule": "nan", "severity": "critical"}
        assert value(registry, "dump_ingest_last_finding_step", **labels) == 5

    def test_a_rank_beyond_the_bound_is_named_by_its_findings(self, registry: CollectorRegistry) -> None:
        metrics = FindingMetrics(registry, lambda: NOW)
        metrics.observe(9999, 3, [RuleTotal("nan", "critical", 1)])
        labels = {"rank": "9999", "rule": "nan", "severity": "critical"}
        assert value(registry, "dump_ingest_last_finding_step", **labels) == 3

    def test_rules_beyond_the_bound_count_as_one(self, registry: CollectorRegistry) -> None:
        metrics = FindingMetrics(registry, lambda: NOW)
        for number in range(3 * MAX_RULES):
            metrics.observe(0, 1, [RuleTotal(f"rule{number}", "info", 1)])
        assert value(registry, "dump_ingest_findings_total", rule=OTHER, severity="info") == 2 * MAX_RULES
        assert series(registry) <= 1 + MAX_RULES + 1 + 2 * (MAX_RULES + 1)


class TestConsolidator:
    def test_shows_how_far_ranks_and_view_are(self, registry: CollectorRegistry) -> None:
        now = [NOW]
        metrics = ConsolidatorMetrics(registry, lambda: now[0])
        name = "dump_ingest_consolidator_"
        assert value(registry, f"{name}newest_step") == -1
        assert value(registry, f"{name}oldest_waiting_timestamp_seconds") == NOW
        metrics.lease(held=True)
        metrics.observe(CommitsListed({0: 3, 1: 3, 2: 1}, (1, 2, 3), -1))
        now[0] += 5
        metrics.observe(StepsConsolidated(appended=(1,), waiting=(2, 3)))
        now[0] += 60
        metrics.observe(CommitsListed({0: 4, 1: 4, 2: 1}, (2, 3, 4), 1))
        assert value(registry, f"{name}lease_held") == 1
        assert value(registry, f"{name}newest_step") == 1
        assert value(registry, f"{name}steps_behind") == 3
        assert value(registry, f"{name}oldest_waiting_timestamp_seconds") == NOW
        assert value(registry, f"{name}last_round_timestamp_seconds") == NOW + 5
        assert value(registry, f"{name}committed_step", rank="2") == 1
        assert value(registry, f"{name}fastest_rank_step") == 4
        assert value(registry, f"{name}slowest_rank_step") == 1
        assert value(registry, f"{name}round_duration_seconds_sum") == 5
        metrics.observe(StepsConsolidated(rewritten=(1,), damaged=("rank_0/4: no JSON",)))
        assert value(registry, f"{name}damaged_commits") == 1
        assert value(registry, f"{name}steps_behind") == 0
        assert value(registry, f"{name}rewritten_steps_total") == 1

    def test_is_told_of_every_round_of_a_real_store(
        self, registry: CollectorRegistry, dumps: dict[str, Path], tmp_path: Path
    ) -> None:
        ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr")
        metrics = ConsolidatorMetrics(registry)
        with Consolidator(ObjectStore(resolve(str(tmp_path / "run.zarr")))) as consolidator:
            consolidator.observers.append(metrics.observe)
            consolidator.once()
            consolidator.once()
        assert value(registry, "dump_ingest_consolidator_newest_step") == 3
        assert value(registry, "dump_ingest_consolidator_appended_steps_total") == 3
        assert value(registry, "dump_ingest_consolidator_steps_behind") == 0
        assert value(registry, "dump_ingest_consolidator_ranks") == 2

    def test_findings_over_several_ranks_are_told_with_step_and_rank(
        self, registry: CollectorRegistry
    ) -> None:
        metrics = ConsolidatorMetrics(registry, lambda: NOW, rules=[("replicas_diverge", "critical")])
        labels = {"rule": "replicas_diverge", "severity": "critical"}
        assert value(registry, "dump_ingest_findings_total", **labels) == 0
        rows = [
            Finding("replicas_diverge", "critical", rank, 40, 5, "0", "Parameter.w", 0.0, 0.0, "differs")
            for rank in (3, 3, None)
        ]
        totals, failed = {"replicas_diverge": 700}, {"broken": "no such field"}
        found = Evaluated("0123456789abcdef", tuple(rows), totals, failed)
        metrics.observe(StepsConsolidated(findings=(StepFindings(40, found),)))
        assert value(registry, "dump_ingest_findings_total", **labels) == 700
        for rank in ("3", "all"):
            assert value(registry, "dump_ingest_last_finding_step", rank=rank, **labels) == 40
        assert value(registry, "dump_ingest_rule_failures_total") == 1

    def test_ten_thousand_ranks_make_a_bounded_number_of_series(self, registry: CollectorRegistry) -> None:
        metrics = ConsolidatorMetrics(registry)
        metrics.observe(CommitsListed({rank: 10_000 - rank for rank in range(10_000)}, tuple(range(500)), 3))
        for rank in range(10_000):
            metrics.findings.observe(rank, 7, [RuleTotal("replicas_diverge", "critical", 1)])
        metrics.findings.note_place(None, 8, "missing", "warning")
        count = series(registry)
        print(f"{count} series for 10,000 ranks")
        assert count <= MAX_RANKS + 1 + MAX_RULES + 1 + 2 * (MAX_PLACES + MAX_RULES + 1) + 200
        assert value(registry, "dump_ingest_consolidator_committed_step", rank=OTHER) == 1
        assert value(registry, "dump_ingest_consolidator_committed_step", rank="0") == 10_000
        labels = {"rank": "all", "rule": "missing", "severity": "warning"}
        assert value(registry, "dump_ingest_last_finding_step", **labels) == 8


@pytest.fixture
def requests() -> Iterator[list[StoreRequested]]:
    """What the store is asked in this test."""
    told: list[StoreRequested] = []

    def observe(event: events.Event) -> None:
        if isinstance(event, StoreRequested):
            told.append(event)

    events.subscribe(observe)
    yield told
    events.unsubscribe(observe)


class TestStore:
    def test_every_operation_is_told_once(self, requests: list[StoreRequested], tmp_path: Path) -> None:
        store = ObjectStore(resolve(str(tmp_path)))
        calls: list[tuple[str, Callable[[], object]]] = [
            ("put", lambda: store.put("a/b", b"12345")),
            ("get", lambda: store.get("a/b")),
            ("get", lambda: store.get("a/none")),
            ("get", lambda: store.get_range("a/b", 1, 2)),
            ("get_many", lambda: store.get_many(["a/b", "a/none"])),
            ("list", lambda: store.children("a")),
            ("list", store.sizes),
            ("delete", lambda: store.delete("a/b")),
        ]
        for op, call in calls:
            requests.clear()
            call()
            assert [(one.op, one.error) for one in requests] == [(op, None)]
        assert {op for op, _ in calls} | {"put_many"} == set(STORE_OPS)

    def test_a_refusal_is_told_with_its_reason(
        self, registry: CollectorRegistry, requests: list[StoreRequested], tmp_path: Path
    ) -> None:
        metrics = StoreMetrics(registry)
        (tmp_path / "file").write_bytes(b"")
        store = ObjectStore(resolve(str(tmp_path)))
        with pytest.raises(StoreUnavailable):
            store.put("file/below", b"")
        for one in requests:
            metrics.observe(one)
        labels = {"op": "put", "reason": "store_unavailable"}
        assert value(registry, "dump_ingest_store_request_errors_total", **labels) == 1
        assert value(registry, "dump_ingest_store_request_duration_seconds_count", op="put") == 1


def test_series_of_a_worker_do_not_depend_on_what_it_converts(registry: CollectorRegistry) -> None:
    WorkerMetrics(registry)
    StoreMetrics(registry)
    count = series(registry)
    print(f"{count} series of a worker")
    assert count < 250


class TestServe:
    def test_serves_memory_and_processor_time_beside(self, registry: CollectorRegistry) -> None:
        WatcherMetrics(registry)
        port = free_port()
        stop = serve(registry, f"127.0.0.1:{port}")
        try:
            text = http_get(port, "/metrics")[1].decode()
        finally:
            stop()
        assert "process_resident_memory_bytes" in text
        assert "_created" not in text

    @pytest.mark.parametrize("address", ["127.0.0.1:99999", "256.0.0.1:9108"])
    def test_an_address_that_cannot_be_served_is_refused(
        self, registry: CollectorRegistry, address: str
    ) -> None:
        with pytest.raises(UsageError, match="cannot serve"):
            serve(registry, address)
