"""Findings as metrics."""

from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from ingest.dispatch.outcomes import StepCommitted
from ingest.metrics.findings import FindingMetrics
from tests.dumps import DumpLibrary
from tests.metric_values import NOW, value
from tests.pipeline import plan_all
from workers.store.model import CommitSummary


def test_a_finding_is_told_with_its_step_as_the_value(
    registry: CollectorRegistry, summary: CommitSummary, dumps: DumpLibrary, tmp_path: Path
) -> None:
    metrics = FindingMetrics(registry, lambda: NOW)
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
