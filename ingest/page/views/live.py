"""Live: how far the run is, what each rank has committed last, and what was found last."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ingest.page.screen import Asked, Screen, lines
from ingest.reader.rows import step_row

_NEWEST, _FINDINGS = 24, 20


def show(asked: Asked) -> dict[str, Any]:
    """Return the progress of each rank, the newest commits and the newest findings."""
    moment = asked.moment
    rows = [step_row(opened) for opened in moment.steps if opened.key.step is not None]
    newest = sorted(rows, key=lambda row: row["committed_at"], reverse=True)
    last_step = max((row["step"] for row in rows), default=None)
    ranks = [_rank_row(rank, rows, last_step) for rank in moment.ranks]
    findings = [
        finding
        for opened in sorted(moment.steps, key=lambda opened: -(opened.key.step or 0))[:_NEWEST]
        for finding in _counted_findings(opened.commit.summary)
    ]
    totals: Counter[str] = Counter()
    for row in rows:
        totals.update(
            {name: row[name] for name in ("tensors", "files", "raw_bytes", "stored_bytes", "quarantined")}
        )
    return {
        "last_step": last_step,
        "ranks": ranks,
        "behind": [row for row in ranks if row["behind"]],
        "newest": newest[:_NEWEST],
        "findings": findings[:_FINDINGS],
        "damages": moment.damages,
        "totals": totals,
        "commits": len(rows),
        "since": newest[0]["committed_at"] if newest else None,
        "lines": lines(asked, ("ls", asked.url), "[step for step in store.select()]"),
    }


def _rank_row(rank: int, rows: list[dict[str, Any]], last_step: int | None) -> dict[str, Any]:
    own = [row for row in rows if row["rank"] == rank]
    latest = max(own, key=lambda row: row["step"])
    return {
        "rank": rank,
        "step": latest["step"],
        "steps": len(own),
        "behind": (last_step or 0) - latest["step"],
        "host": latest["host"],
        "status": latest["status"],
        "since": latest["committed_at"],
        "share": round(100 * (latest["step"] + 1) / ((last_step or 0) + 1)),
    }


def _counted_findings(summary: Any) -> list[dict[str, Any]]:
    return [
        {
            "rank": summary.key.rank,
            "step": summary.key.step,
            "rule": rule,
            "severity": summary.severities.get(rule, "info"),
            "count": count,
        }
        for rule, count in summary.findings.items()
        if summary.key.step is not None and count
    ]


SCREEN = Screen("live", "Live", "live.html.j2", (), show)
