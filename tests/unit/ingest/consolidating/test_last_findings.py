"""What a consolidator tells when it starts."""

from pathlib import Path

from prometheus_client import CollectorRegistry

from ingest.consolidating.consolidator import CommitsListed, LastFindings
from ingest.metrics import ConsolidatorMetrics
from ingest.steps.events import AnomalousCommitRead
from tests.dumps import DumpLibrary
from tests.metric_values import value
from tests.pipeline import ingest_directly
from workers.events import Event
from workers.store.opening import open_objects, resolve


def test_findings_of_the_last_steps_are_told_once_with_the_time_of_their_commit(
    dumps: DumpLibrary, tmp_path: Path
) -> None:
    store = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    told: list[Event] = []
    last = LastFindings(open_objects(resolve(str(store))), told.append)
    listed = CommitsListed({0: 3, 1: 3}, (), -1)
    last.observe(listed)
    last.observe(listed)
    [event] = [event for event in told if isinstance(event, AnomalousCommitRead)]
    assert (event.key.rank, event.key.step) == (1, 3)

    registry = CollectorRegistry()
    ConsolidatorMetrics(registry).observe(event)
    labels = {"rank": "1", "rule": "nan", "severity": "critical"}
    assert value(registry, "dump_ingest_last_finding_step", **labels) == 3
    assert value(registry, "dump_ingest_last_finding_timestamp_seconds", **labels) == event.committed_at
    assert value(registry, "dump_ingest_findings_total", rule="nan", severity="critical") is None
