"""What a watcher exports: all of it from the beginning, and a bounded number of series."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from ingest.dispatch.submitter import StepCommitted
from ingest.layouts.base import Problem
from ingest.metrics import WatcherMetrics
from ingest.metrics.observers import MAX_PLACES, MAX_RULES
from ingest.metrics.server import MAX_RANKS, OTHER
from tests.dumps import DumpLibrary
from tests.metric_values import NOW, listing, look, series, value
from tests.pipeline import plan_all
from workers.errors import REASONS
from workers.model import StepKey
from workers.store.model import CommitSummary
from workers.store.objects import STORE_OPS
from workers.tasks.model import StepPlan


def test_problems_are_told_by_what_keeps_something_from_being_ingested(registry: CollectorRegistry) -> None:
    metrics = WatcherMetrics(registry, lambda: NOW)
    problems = (
        Problem("rank_1", "permission denied", denied=True),
        Problem("rank-2", "is not how a dump names the directory of a rank", misnamed=True),
        Problem("rank_0/link", "is a symbolic link"),
        Problem("rank_0/other", "is a symbolic link"),
    )
    metrics.observe(replace(look([listing(0, 1)], []), problems=problems))
    counts = {"denied": 1, "name": 1, "other": 2}
    for kind, count in counts.items():
        assert value(registry, "dump_ingest_watcher_problems", kind=kind) == count
    metrics.observe(look([listing(0, 1)], []))
    assert value(registry, "dump_ingest_watcher_problems", kind="denied") == 0


@pytest.fixture
def plan(dumps: DumpLibrary, summary: CommitSummary, tmp_path: Path) -> StepPlan:
    plans = plan_all(dumps["nan-log-2rank"] / "dump", tmp_path / "other.zarr")
    return next(plan for plan in plans if plan.key == summary.key)


def test_every_counter_without_a_rank_is_there_before_there_is_a_dump(registry: CollectorRegistry) -> None:
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


def test_ten_thousand_ranks_of_a_hundred_thousand_tensors_make_a_bounded_number_of_series(
    registry: CollectorRegistry, summary: CommitSummary, dumps: DumpLibrary, tmp_path: Path
) -> None:
    metrics = WatcherMetrics(registry, lambda: NOW)
    plan = replace(plan_all(dumps["dtypes-1rank"] / "dump", tmp_path)[0], entries=())
    step = listing(0, 5)
    steps = [replace(step, key=StepKey(rank, 5), newest_change=NOW - rank) for rank in range(10_000)]
    metrics.observe(look(steps, steps))
    for rank in range(10_000):
        key = StepKey(rank, 5)
        worst = replace(summary, key=key, tensors=100_000, nan_tensors=100_000, pos_inf_tensors=100_000)
        metrics.observe(StepCommitted(plan, worst, 1.0))
    metrics.observe(look(steps, steps[:5000]))
    count = series(registry)
    print(f"{count} series for 10,000 ranks")
    assert count <= 15 * (MAX_RANKS + 1) + MAX_RULES + 1 + 2 * (MAX_PLACES + MAX_RULES + 1) + 250
    # What the others have together is told of the worst of them, and summed up.
    assert value(registry, "dump_ingest_watcher_pending_steps", rank=OTHER) == 5000 - MAX_RANKS
    oldest = value(registry, "dump_ingest_watcher_oldest_pending_timestamp_seconds", rank=OTHER)
    assert oldest == NOW - 4999
    assert value(registry, "dump_ingest_watcher_ranks") == 10_000
    # A finding has its rank for as long as there are few of them.
    labels = {"rank": "500", "rule": "nan", "severity": "critical"}
    assert value(registry, "dump_ingest_last_finding_step", **labels) == 5


def test_rules_have_a_bounded_number_of_series(registry: CollectorRegistry) -> None:
    rules = [(f"rule-{number}", "warning") for number in range(MAX_RULES + 50)]
    WatcherMetrics(registry, lambda: NOW, rules=rules)
    samples = (sample for family in registry.collect() for sample in family.samples)
    told = {each.labels["rule"] for each in samples if each.name == "dump_ingest_findings_total"}
    assert told == {*(name for name, _ in rules[:MAX_RULES]), OTHER}
