"""Findings in the form of Alertmanager's webhook."""

import json
import math
from typing import Any

from ingest.findings.incidents import Incident, IncidentKind
from ingest.reporting.webhook import incident_payload, payload
from workers.store.model import Finding

NAN = Finding("nan", "critical", 1, 7, 3, "0", "Log.x.output.0", 2.0, math.nan, "2 NaN of 24 elements")
MISSING = Finding("missing", "warning", None, 7, -1, "", "", math.nan, math.nan, "step missing on rank 1")


def message(*findings: Finding, total: int = 2) -> dict[str, Any]:
    return payload("run.zarr", findings, total)


def test_the_same_finding_has_the_same_fingerprint_and_others_have_another() -> None:
    first, second = message(NAN, MISSING)["alerts"]
    assert first["fingerprint"] != second["fingerprint"]
    assert message(NAN)["alerts"][0]["fingerprint"] == first["fingerprint"]


def test_an_incident_is_one_alert_with_its_id_host_and_store() -> None:
    incident = Incident(
        id="0123456789abcdef",
        kind=IncidentKind.NAN,
        severity="critical",
        store="/data/run.zarr",
        host="node-1",
        rank=1,
        first_step=2,
        last_step=9,
        steps=8,
        ranks=(0, 1),
        op_type="Log",
        op_name="op0",
        summary="NaN born in Log (op0) on rank 1, step 2",
        reason="logarithm of a number that is not positive (2 of 24 elements)",
        tensors=10,
        rules={"nan": 10},
    )
    body = incident_payload(incident)
    (alert,) = body["alerts"]
    assert (body["version"], body["groupKey"]) == ("4", "dump-ingest:/data/run.zarr:0123456789abcdef")
    assert alert["fingerprint"] == alert["labels"]["incident"] == incident.id
    assert (alert["labels"]["host"], alert["labels"]["rank"], alert["labels"]["step"]) == ("node-1", "1", "2")
    assert alert["annotations"] == {
        "summary": incident.summary,
        "description": incident.reason,
        "steps": "2-9",
        "ranks": "0-1",
        "tensors": "10",
        "rules": "nan 10",
    }
    assert "graph" not in alert["labels"]
    json.dumps(body, allow_nan=False)
