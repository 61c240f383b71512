"""How far ranks are."""

from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from ingest.dispatch.outcomes import StepCommitted
from ingest.layouts.base import Problem
from ingest.metrics.progress import ProgressMetrics
from ingest.metrics.ranks import RankLabels
from tests.dumps import DumpLibrary
from tests.metric_values import NOW, listing, look, value
from tests.pipeline import plan_all
from workers.store.model import CommitSummary


def test_lag_is_that_of_the_oldest_step_of_each_rank(registry: CollectorRegistry) -> None:
    metrics = ProgressMetrics(registry, lambda: NOW, RankLabels())
    steps = [listing(0, 1), listing(0, 2), listing(1, 1, newest=NOW - 50), listing(1, 2, newest=NOW - 9)]
    metrics.observe(look(steps, steps[2:]))
    name = "dump_ingest_watcher_oldest_pending_timestamp_seconds"
    assert value(registry, name, rank="0") == NOW
    assert value(registry, name, rank="1") == NOW - 50
    assert value(registry, "dump_ingest_watcher_committed_step", rank="0") == 2
    assert value(registry, "dump_ingest_watcher_committed_step", rank="1") == -1
    assert value(registry, "dump_ingest_watcher_pending_bytes", rank="1") == 200


def test_a_rank_whose_dumps_were_cleaned_away_has_not_fallen_behind(registry: CollectorRegistry) -> None:
    metrics = ProgressMetrics(registry, lambda: NOW, RankLabels())
    metrics.observe(look([listing(0, 7), listing(1, 7)], []))
    metrics.observe(look([listing(0, 7)], []))
    for rank in ("0", "1"):
        assert value(registry, "dump_ingest_watcher_newest_step", rank=rank) == 7


def test_backlog_of_each_rank(registry: CollectorRegistry) -> None:
    metrics = ProgressMetrics(registry, lambda: NOW, RankLabels())
    waiting = [listing(0, 2, files=3), listing(0, 3, files=2)]
    metrics.observe(look([listing(0, 1), *waiting, listing(1, 1)], waiting))
    for name, count in (("steps", 2), ("files", 5), ("bytes", 500)):
        assert value(registry, f"dump_ingest_watcher_pending_{name}", rank="0") == count
        assert value(registry, f"dump_ingest_watcher_pending_{name}", rank="1") == 0
    assert value(registry, "dump_ingest_watcher_ranks") == 2
    assert value(registry, "dump_ingest_watcher_last_look_timestamp_seconds") == NOW


def test_a_commit_shows_before_the_next_look(
    registry: CollectorRegistry, summary: CommitSummary, dumps: DumpLibrary, tmp_path: Path
) -> None:
    metrics = ProgressMetrics(registry, lambda: NOW, RankLabels())
    plan = plan_all(dumps["nan-log-2rank"] / "dump", tmp_path / "s.zarr")[0]
    metrics.observe(StepCommitted(plan, summary, 0.5))
    assert value(registry, "dump_ingest_watcher_committed_step", rank="1") == 2
    assert value(registry, "dump_ingest_watcher_last_commit_timestamp_seconds", rank="1") == NOW


def test_what_belongs_to_no_step_is_no_backlog_but_its_rank_is_known(registry: CollectorRegistry) -> None:
    metrics = ProgressMetrics(registry, lambda: NOW, RankLabels())
    run_files = listing(4, None)
    metrics.observe(look([run_files], [run_files]))
    assert value(registry, "dump_ingest_watcher_ranks") == 1
    assert value(registry, "dump_ingest_watcher_pending_steps", rank="4") == 0
    assert value(registry, "dump_ingest_watcher_newest_step", rank="4") == -1


def test_a_step_that_was_committed_is_no_lag_until_the_next_look(
    registry: CollectorRegistry, summary: CommitSummary, dumps: DumpLibrary, tmp_path: Path
) -> None:
    """A look at a large dump takes minutes, and is followed by a rest ten times as long."""
    metrics = ProgressMetrics(registry, lambda: NOW, RankLabels())
    steps = [listing(1, 2, newest=NOW - 500), listing(1, 3, newest=NOW - 50)]
    metrics.observe(look(steps, steps))
    name = "dump_ingest_watcher_oldest_pending_timestamp_seconds"
    assert value(registry, name, rank="1") == NOW - 500
    plan = plan_all(dumps["nan-log-2rank"] / "dump", tmp_path / "s.zarr")[0]
    metrics.observe(StepCommitted(plan, summary, 0.5))  # rank 1 step 2
    assert value(registry, name, rank="1") == NOW - 50
    assert value(registry, "dump_ingest_watcher_pending_steps", rank="1") == 1


def test_problems_are_told_by_what_keeps_something_from_being_ingested(registry: CollectorRegistry) -> None:
    metrics = ProgressMetrics(registry, lambda: NOW, RankLabels())
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


def test_a_rank_that_stands_still_is_behind_by_what_others_write(registry: CollectorRegistry) -> None:
    metrics = ProgressMetrics(registry, lambda: NOW, RankLabels())
    steps = [listing(rank, step, newest=NOW + step) for rank in (0, 1) for step in (1, 2)]
    metrics.observe(look(steps, []))
    assert value(registry, "dump_ingest_watcher_steps_behind", rank="1") == 0
    steps += [listing(0, step, newest=NOW + step) for step in (3, 4)]
    metrics.observe(look(steps, []))
    assert value(registry, "dump_ingest_watcher_steps_behind", rank="1") == 2
    assert value(registry, "dump_ingest_watcher_steps_behind", rank="0") == 0
