"""Findings in the form of Prometheus Alertmanager's webhook (version 4), which many receivers accept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import xxhash

from workers.store.model import Finding


def payload(store: str, findings: Sequence[Finding], total: int) -> dict[str, Any]:
    """Return the message about one step; `total` also counts findings that are not in it."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    step = str(findings[0].step)
    common = {"alertname": "DumpIngestFinding", "store": store, "step": step}
    return {
        "version": "4",
        "receiver": "dump-ingest",
        "status": "firing",
        "groupKey": f"dump-ingest:{store}:{step}",
        "truncatedAlerts": max(total - len(findings), 0),
        "groupLabels": common,
        "commonLabels": common,
        "commonAnnotations": {},
        "externalURL": "",
        "alerts": [_alert(finding, common, now) for finding in findings],
    }


def _alert(finding: Finding, common: Mapping[str, str], now: str) -> dict[str, Any]:
    labels = {**common, "rule": finding.rule, "severity": finding.severity}
    where = f"step {finding.step}"
    if finding.rank is not None:
        labels["rank"] = str(finding.rank)
        where = f"rank {finding.rank} {where}"
    annotations = {"summary": f"{finding.rule}: {where}", "description": finding.reason}
    if finding.name:
        labels["tensor"] = finding.name
        labels["graph"] = finding.graph
        annotations["summary"] += f": {finding.name}"
    if math.isfinite(finding.value):
        annotations["value"] = f"{finding.value:.9g}"
    if math.isfinite(finding.threshold):
        annotations["threshold"] = f"{finding.threshold:.9g}"
    return {
        "status": "firing",
        "labels": labels,
        "annotations": annotations,
        "startsAt": now,
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": xxhash.xxh3_64_hexdigest(json.dumps(labels, sort_keys=True).encode()),
    }
