"""Incidents and findings as Prometheus Alertmanager's webhook (version 4), which many receivers accept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import xxhash

from ingest.findings.incidents import Incident
from ingest.reader.ranges import format_ranges
from ingest.reporting.page_link import incident_link
from workers.store.model import Finding

#: The zero time of Go: Alertmanager writes it for an alert that fires.
_NO_END = "0001-01-01T00:00:00Z"


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


def incident_payload(incident: Incident, page_url: str = "") -> dict[str, Any]:
    """Return the message about one incident: a group with one alert, whose fingerprint is the id.

    With the URL of the page, the alert leads to the incident on it.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    labels = {
        "alertname": "DumpIngestIncident",
        "store": incident.store,
        "incident": incident.id,
        "kind": incident.kind.value,
        "severity": incident.severity,
        "step": str(incident.first_step),
    }
    known = {
        "rank": "" if incident.rank is None else str(incident.rank),
        "host": incident.host,
        "op_type": incident.op_type,
        "op_name": incident.op_name,
        "graph": incident.graph,
        "tensor": incident.tensor,
    }
    labels |= {name: value for name, value in known.items() if value}
    annotations = {
        "summary": incident.summary,
        "description": incident.reason,
        "steps": f"{incident.first_step}-{incident.last_step}",
        "ranks": format_ranges(incident.ranks) if incident.ranks else "",
        "tensors": str(incident.tensors),
        "rules": ", ".join(f"{rule} {count}" for rule, count in incident.rules.items()),
    }
    return {
        "version": "4",
        "receiver": "dump-ingest",
        "status": "firing",
        "groupKey": f"dump-ingest:{incident.store}:{incident.id}",
        "truncatedAlerts": 0,
        "groupLabels": {name: labels[name] for name in ("alertname", "store", "incident")},
        "commonLabels": labels,
        "commonAnnotations": {},
        "externalURL": page_url,
        "alerts": [
            {
                "status": "firing",
                "labels": labels,
                "annotations": {name: text for name, text in annotations.items() if text},
                "startsAt": now,
                "endsAt": _NO_END,
                "generatorURL": incident_link(page_url, incident.store, incident.id),
                "fingerprint": incident.id,
            }
        ],
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
        "endsAt": _NO_END,
        "generatorURL": "",
        "fingerprint": xxhash.xxh3_64_hexdigest(json.dumps(labels, sort_keys=True).encode()),
    }
