"""What a consolidator exports."""

from prometheus_client import CollectorRegistry

from ingest.consolidating.consolidator import CommitsListed, StepsConsolidated
from ingest.metrics import ConsolidatorMetrics
from tests.metric_values import NOW, value


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
