"""Metrics that are declared in one line."""

from prometheus_client import CollectorRegistry

from ingest.metrics.declare import Declare
from tests.metric_values import value


def test_metrics_have_the_prefix_and_their_labels(registry: CollectorRegistry) -> None:
    declare = Declare(registry, "dump_ingest_test_")
    declare.gauge("height", "A gauge.", "rank").labels(rank="3").set(7)
    declare.counter("steps", "A counter.").inc(2)
    declare.histogram("seconds", "A histogram.", (1, 10)).observe(5)
    assert value(registry, "dump_ingest_test_height", rank="3") == 7
    assert value(registry, "dump_ingest_test_steps_total") == 2
    assert value(registry, "dump_ingest_test_seconds_bucket", le="1.0") == 0
    assert value(registry, "dump_ingest_test_seconds_bucket", le="10.0") == 1


def test_series_of_a_known_label_exist_from_the_start(registry: CollectorRegistry) -> None:
    """An alert on an increase does not see the first one otherwise."""
    declare = Declare(registry, "dump_ingest_test_")
    declare.counter_by("reason", ["a", "b"], "failures", "A counter.")
    assert value(registry, "dump_ingest_test_failures_total", reason="a") == 0
    assert value(registry, "dump_ingest_test_failures_total", reason="b") == 0
