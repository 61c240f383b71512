"""The disk of a dump."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from ingest.disk.pressure import Pressure
from ingest.disk.space import DiskSpace, space_at
from ingest.metrics.disk import DiskMetrics
from tests.metric_values import look, value


def test_disk_is_shown_from_the_first_look_on_and_never_as_full_before(
    registry: CollectorRegistry, tmp_path: Path
) -> None:
    metrics = DiskMetrics(registry)
    assert value(registry, "dump_ingest_watcher_disk_free_bytes") is None
    metrics.observe(look([], []))
    assert value(registry, "dump_ingest_watcher_disk_free_bytes") is None
    space = space_at(tmp_path)
    assert space is not None
    metrics.observe(Pressure().judge(space))
    free = value(registry, "dump_ingest_watcher_disk_free_bytes")
    size = value(registry, "dump_ingest_watcher_disk_size_bytes")
    assert free is not None
    assert size is not None
    assert 0 < free < size
    assert space_at(tmp_path / "gone") is None


def test_pressure_shows_with_the_policy_that_applies(registry: CollectorRegistry) -> None:
    metrics, pressure = DiskMetrics(registry), Pressure("statistics")
    for free, shown in [(500, 0), (99, 1), (120, 1), (130, 0)]:
        metrics.observe(pressure.judge(DiskSpace(free, 1000, 0, 0)))
        assert value(registry, "dump_ingest_watcher_under_pressure", policy="statistics") == shown
