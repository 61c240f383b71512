"""What is shipped for Prometheus, Alertmanager and Grafana: valid, tested, explained, and true to metrics."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry

from ingest.cli.app import app
from ingest.disk.pressure import Pressure
from ingest.disk.space import DiskSpace
from ingest.metrics import ConsolidatorMetrics, WatcherMetrics
from ingest.watching.watcher import DumpState
from tests.alert_rules import ALERTMANAGER, DEPLOY, PROMETHEUS, RULES, alerts, quickened
from tests.servers.process import run_tool
from tests.servers.prometheus import StartPrometheus
from workers.tasks.metrics import StoreMetrics, WorkerMetrics

RUNBOOKS = DEPLOY.parent / "docs" / "runbooks.md"
CASES = RULES.with_name("rules_test.yml")
DASHBOARD = DEPLOY / "grafana" / "dump-ingest.json"
PARTS = ("Meaning", "Impact", "Diagnosis", "Mitigation", "Limits")
#: What Dask and client libraries serve; the test of alerts with real servers asks for them.
OTHERS = {
    "up",
    "ALERTS",
    "dask_scheduler_workers",
    "dask_scheduler_tasks",
    "dask_scheduler_tick_duration_maximum_seconds",
    "dask_worker_tick_duration_maximum_seconds",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "process_open_fds",
}
_NAME = re.compile(r"\b(?:(?:dump_ingest|dask|process)_\w+|up|ALERTS)\b(?=[{\[ )]|$)")
_SELECTOR = re.compile(r'"[^"]*"')


def exported() -> set[str]:
    """Return the names of all series that our processes serve."""
    names = set()
    watcher, consolidator, worker = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
    metrics = WatcherMetrics(watcher)
    metrics.observe(DumpState({}, {}, ()))
    metrics.observe(Pressure().see(DiskSpace(1, 2, 1, 2)))
    ConsolidatorMetrics(consolidator)
    WorkerMetrics(worker)
    StoreMetrics(worker)
    for registry in (watcher, consolidator, worker):
        for family in registry.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
            names |= {family.name + suffix for suffix in suffixes.get(family.type, [""])}
    return names


def used(expression: str) -> set[str]:
    """Return the names of the series that an expression asks for."""
    return set(_NAME.findall(_SELECTOR.sub('""', expression)))


def questions() -> list[str]:
    """Return every expression of the dashboard."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [*panels, *(one["expr"] for one in dashboard["annotations"]["list"])]


def sections() -> dict[str, str]:
    """Return the runbooks by the name of the alert."""
    parts = re.split(r"^## (\w+)$", RUNBOOKS.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def commands() -> list[str]:
    """Return every command in the runbooks, and in the messages of the alerts."""
    fences = re.findall(r"^```bash\n(.*?)^```$", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL)
    found = [line for fence in fences for line in fence.splitlines() if line.startswith("dump-ingest ")]
    messages = " ".join(rule["annotations"]["description"] for rule in alerts())
    shown = re.findall(r"`(dump-ingest [^`]*)`", messages)
    return [*found, *(re.sub(r"\{\{.*?\}\}", "1", command) for command in shown)]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
class TestAlert:
    def test_says_what_how_bad_and_what_to_do(self, rule: dict[str, Any]) -> None:
        assert re.fullmatch(r"DumpIngest([A-Z][a-z]+)+", rule["alert"])
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert']}"

    def test_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(self, rule: dict[str, Any]) -> None:
        name = rule["alert"]
        cases = [one for one in yaml.safe_load(CASES.read_text())["tests"] if one["name"].startswith(name)]
        expected = [
            (ask["expr"], bool(ask.get("exp_samples")), str(ask.get("exp_samples")))
            for case in cases
            for ask in case.get("promql_expr_test", [])
        ]
        assert any(fires and f'alertname="{name}"' in samples for _, fires, samples in expected)
        assert any(not fires and f'alertname="{name}"' in asked for asked, fires, _ in expected)

    def test_has_a_runbook(self, rule: dict[str, Any]) -> None:
        text = sections()[rule["alert"]]
        assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == list(PARTS)


def test_every_runbook_has_an_alert() -> None:
    assert list(sections()) == [rule["alert"] for rule in alerts()]


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_a_command_of_a_runbook_can_be_typed(command: str) -> None:
    """Commands, options and their values are parsed as the command line does it; nothing is run."""
    words = shlex.split(command)[1:]
    found: Any = typer.main.get_command(app)
    above = None
    while hasattr(found, "resolve_command"):
        above = found.make_context("dump-ingest", [], parent=above, resilient_parsing=True)
        _, found, words = found.resolve_command(above, words)
    found.make_context(found.name, words, parent=above)


def test_metrics_in_alerts_and_on_the_dashboard_exist() -> None:
    known = exported() | OTHERS
    for expression in (*(rule["expr"] for rule in alerts()), *questions()):
        names = used(expression)
        assert names, expression
        assert names <= known, f"{names - known} in {expression}"


def test_the_dashboard_has_a_fixed_place_and_panels_do_not_overlap() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["uid"] == "dump-ingest"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["description"]


@pytest.mark.prometheus
class TestWithTheTools:
    """Prometheus' and Alertmanager's own checks."""

    @pytest.fixture(autouse=True)
    def _servers(self, prometheus: StartPrometheus, alertmanager: object) -> None:
        """Skip where they are not installed."""

    def test_configurations_are_valid(self, tmp_path: Path) -> None:
        run_tool(["promtool", "check", "config", "--lint=all", "--lint-fatal", str(PROMETHEUS)])
        run_tool(["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(RULES)])
        run_tool(["promtool", "check", "rules", str(quickened(150, tmp_path))])
        run_tool(["amtool", "check-config", str(ALERTMANAGER)])

    def test_every_case_comes_out_as_expected(self) -> None:
        run_tool(["promtool", "test", "rules", str(CASES)], timeout_s=60)

    def test_questions_of_the_dashboard_are_understood(self, tmp_path: Path) -> None:
        names = {"$__rate_interval": "1m", "$__range": "1h", "$instance": ".*", "$rank": ".*"}
        pattern = re.compile("|".join(re.escape(name) for name in names))
        rules = [
            {"record": f"panel:{number}", "expr": pattern.sub(lambda m: names[m[0]], expression)}
            for number, expression in enumerate(questions())
        ]
        path = tmp_path / "panels.yml"
        path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
        run_tool(["promtool", "check", "rules", str(path)])

    @pytest.mark.parametrize(
        ("labels", "receiver"),
        [
            ("alertname=DumpIngestNotFinite severity=critical", "on-call"),
            ("alertname=DumpIngestQuarantineGrowing severity=warning", "tickets"),
            ("alertname=SomethingElse severity=critical", "tickets"),
        ],
    )
    def test_alerts_go_where_they_should(self, labels: str, receiver: str) -> None:
        said = run_tool(
            ["amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}", *labels.split()]
        )
        assert said.strip() == receiver
