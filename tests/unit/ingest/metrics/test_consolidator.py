"""What a consolidator exports."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from ingest.consolidating.consolidator import CommitsListed, Consolidator, StepsConsolidated
from ingest.findings.series import StepFindings
from ingest.metrics import ConsolidatorMetrics
from ingest.metrics.common import MAX_RANKS, OTHER
from ingest.metrics.findings import MAX_PLACES, MAX_RULES
from tests.dumps import DumpLibrary
from tests.metric_values import NOW, series, value
from tests.pipeline import ingest_directly
from workers.store.model import Evaluated, Finding
from workers.store.opening import connect, resolve


def test_shows_how_far_ranks_and_view_are(registry: CollectorRegistry) -> None:
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
    registry: CollectorRegistry, dumps: DumpLibrary, tmp_path: Path
) -> None:
    ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr")
    metrics = ConsolidatorMetrics(registry)
    with Consolidator(connect(resolve(str(tmp_path / "run.zarr")))) as consolidator:
        consolidator.observers.append(metrics.observe)
        consolidator.once()
        consolidator.once()
    assert value(registry, "dump_ingest_consolidator_newest_step") == 3
    assert value(registry, "dump_ingest_consolidator_appended_steps_total") == 3
    assert value(registry, "dump_ingest_consolidator_steps_behind") == 0
    assert value(registry, "dump_ingest_consolidator_ranks") == 2


def test_ten_thousand_ranks_make_a_bounded_number_of_series(registry: CollectorRegistry) -> None:
    metrics = ConsolidatorMetrics(registry)
    metrics.observe(CommitsListed({rank: 10_000 - rank for rank in range(10_000)}, tuple(range(500)), 3))
    rows = [
        Finding("replicas_diverge", "critical", rank, 7, 0, "", "", 0.0, 0.0, "") for rank in range(10_000)
    ]
    result = Evaluated("0123456789abcdef", tuple(rows), {"replicas_diverge": 10_000})
    metrics.observe(StepsConsolidated(findings=(StepFindings(7, result),)))
    together = Finding("missing", "warning", None, 8, 0, "", "", 0.0, 0.0, "")
    result = Evaluated("0123456789abcdef", (together,), {"missing": 1})
    metrics.observe(StepsConsolidated(findings=(StepFindings(8, result),)))
    count = series(registry)
    print(f"{count} series for 10,000 ranks")
    assert count <= 2 * (MAX_RANKS + 1) + MAX_RULES + 1 + 2 * (MAX_PLACES + MAX_RULES + 1) + 210
    assert value(registry, "dump_ingest_consolidator_committed_step", rank=OTHER) == 1
    assert value(registry, "dump_ingest_consolidator_committed_step", rank="0") == 10_000
    labels = {"rank": "all", "rule": "missing", "severity": "warning"}
    assert value(registry, "dump_ingest_last_finding_step", **labels) == 8
