#!/usr/bin/env python3
"""Makes the dashboard `dump-ingest.json` from `panels.yml`; `--check` only says whether it is current.

A dashboard has two thousand lines, most of which place panels.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
PATH = HERE / "dump-ingest.json"
_WIDTH = 24
_RUNBOOKS = "${runbooks}docs/runbooks.md"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: Chosen at the top of the dashboard, and part of every question: panels mix runs only if one asks for it.
_SCOPE = 'namespace=~"$namespace", run=~"$run"'
_SELECTOR = re.compile(r"\b((?:dump_ingest|dask|process)_\w+|up|ALERTS)\b(\{)?")
#: Kinds of panels that show one moment instead of a time range.
_INSTANT = ("bargauge", "stat", "table")


def dashboard() -> dict[str, Any]:
    """Return the whole dashboard."""
    rows = yaml.safe_load((HERE / "panels.yml").read_text())
    return {
        "uid": "dump-ingest",
        "title": "dump-ingest",
        "description": "Tensor dumps on their way into the store: how far ranks are, and what rules found.",
        "tags": ["dump-ingest"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": _variables()},
        "annotations": {"list": [_alerts()]},
        "links": [
            {"type": "link", "title": "Runbooks", "url": _RUNBOOKS, "icon": "doc", "targetBlank": True},
            {"type": "dashboards", "title": "dump-ingest", "tags": ["dump-ingest"], "includeVars": True},
        ],
        "panels": [{**panel, "id": number} for number, panel in enumerate(_panels(rows), 1)],
    }


def _scoped(expression: str) -> str:
    return _SELECTOR.sub(
        lambda match: f"{match[1]}{{{_SCOPE}{', ' if match[2] else '}'}", expression
    ).replace(", }", "}")


def _panels(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    top = 0
    for row in rows:
        yield {
            "type": "row",
            "title": row["row"],
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1},
        }
        top += 1
        left, tallest = 0, 0
        for panel in row["panels"]:
            width, height = panel.get("width", 8), panel.get("height", 8)
            if left + width > _WIDTH:
                left, top, tallest = 0, top + tallest, 0
            yield _panel(panel, {"x": left, "y": top, "w": width, "h": height})
            left, tallest = left + width, max(tallest, height)
        top += tallest


def _panel(panel: Mapping[str, Any], place: Mapping[str, int]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": _SOURCE,
            "expr": _scoped(expression),
            "legendFormat": legend or "__auto",
            "range": kind not in _INSTANT,
            "instant": kind in _INSTANT,
            "format": "table" if kind == "table" else "time_series",
        }
        for number, (legend, expression) in enumerate(panel["queries"].items())
    ]
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short")}
    if "alert" in panel:
        anchor = panel["alert"].lower()
        defaults["links"] = [{"title": "Runbook", "url": f"{_RUNBOOKS}#{anchor}", "targetBlank": True}]
    if kind == "timeseries":
        is_stacked = panel.get("stack", False)
        defaults["custom"] = {
            "fillOpacity": 20 if is_stacked else 0,
            "showPoints": "never",
            "stacking": {"mode": "normal" if is_stacked else "none"},
        }
        defaults["min"] = 0
    if "thresholds" in panel:
        steps = [{"color": color, "value": value} for color, value in panel["thresholds"]]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        defaults["color"] = {"mode": "thresholds"}
    return {
        "type": kind,
        "title": panel["title"],
        "description": panel["text"],
        "datasource": _SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": panel.get("options", {}),
        "targets": targets,
        "transformations": panel.get("transformations", []),
    }


def _variables() -> list[dict[str, Any]]:
    def query(name: str, label: str, expression: str) -> dict[str, Any]:
        return {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _SOURCE,
            "definition": expression,
            "query": {"query": expression, "refId": name},
            "refresh": 2,
            "sort": 3,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }

    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "current": {},
        },
        {
            "name": "runbooks",
            "label": "Documents at",
            "type": "textbox",
            "query": "https://git.example.com/dump-ingest/blob/main/",
            "current": {},
        },
        query("namespace", "Namespace", "label_values(dump_ingest_store_info, namespace)"),
        query("run", "Run", 'label_values(dump_ingest_store_info{namespace=~"$namespace"}, run)'),
        query("instance", "Watcher", f"label_values(dump_ingest_watcher_ranks{{{_SCOPE}}}, instance)"),
        query(
            "rank",
            "Rank",
            f'label_values(dump_ingest_watcher_newest_step{{{_SCOPE}, instance=~"$instance"}}, rank)',
        ),
    ]


def _alerts() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": _scoped('ALERTS{alertname=~"DumpIngest.+", alertstate="firing"}'),
        "titleFormat": "{{alertname}}",
        "textFormat": "{{namespace}} {{run}} rank {{rank}} {{instance}}",
    }


def main() -> int:
    """Write the file; with `--check`, only return 1 if it is not current."""
    text = json.dumps(dashboard(), indent=2) + "\n"
    if sys.argv[1:] == ["--check"]:
        if PATH.read_text() != text:
            sys.stderr.write(f"{PATH} is not current: make generated\n")
            return 1
        return 0
    PATH.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
