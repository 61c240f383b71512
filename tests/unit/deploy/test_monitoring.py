"""What is shipped for Prometheus, Alertmanager and Grafana: valid, tested, explained, and true to metrics."""

import json
import re
import shlex
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client import CollectorRegistry

from ingest.cli.app import app
from ingest.disk import DiskSpace, Pressure
from ingest.metrics import ConsolidatorMetrics, WatcherMetrics
from ingest.steps.watcher import DumpState
from tests.alert_causes import by_run, causes_tests
from tests.alert_states import STATES, rules_tests
from tests.alerts import ALERTMANAGER, DEPLOY, PROMETHEUS, RULES, quickened, recorded, shipped_alerts
from tests.servers.alertmanager import Alertmanager
from tests.servers.process import run_tool
from tests.servers.prometheus import StartPrometheus
from workers.errors import REASONS
from workers.tasks.metrics import StoreMetrics, WorkerMetrics

RUNBOOKS = DEPLOY.parent / "docs" / "runbooks.md"
CASES = RULES.with_name("rules_test.yml")
DASHBOARD = DEPLOY / "grafana" / "dump-ingest.json"
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
    "process_start_time_seconds",
    "kube_cronjob_status_last_schedule_time",
    "kube_cronjob_status_last_successful_time",
    "kube_cronjob_status_active",
    "node_systemd_unit_state",
}
_NAME = re.compile(
    r"\b(?:dump_ingest:[a-z_:]+|(?:dump_ingest|dask|process|kube|node)_\w+|up|ALERTS)\b(?=[{\[ )]|$)"
)
#: The beginning of each command in an annotation: it finds the URL of the store.
_FIND_STORE = re.compile(r"^\{\{ \$store := .*\{\{ end -\}\} ")
_SELECTOR = re.compile(r'"[^"]*"')


def exported() -> set[str]:
    """Return the names of all series that our processes serve."""
    names = set()
    watcher, consolidator, worker = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
    metrics = WatcherMetrics(watcher)
    metrics.observe(DumpState({}, {}, ()))
    metrics.observe(Pressure().judge(DiskSpace(1, 2, 1, 2)))
    ConsolidatorMetrics(consolidator)
    WorkerMetrics(worker)
    StoreMetrics(worker)
    for registry in (watcher, consolidator, worker):
        for family in registry.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
            names |= {family.name + suffix for suffix in suffixes.get(family.type, [""])}
    return names


def _minutes(case: dict[str, Any]) -> int:
    """Return for how long the rules are evaluated in a case."""
    asked = [
        each["eval_time"] for kind in ("promql_expr_test", "alert_rule_test") for each in case.get(kind, ())
    ]
    return max(int(minutes.removesuffix("m")) for minutes in asked)


def used(expression: str) -> set[str]:
    """Return the names of the series that an expression asks for."""
    return set(_NAME.findall(_SELECTOR.sub('""', expression)))


def questions() -> list[str]:
    """Return every expression of the dashboard."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [*panels, *(annotation["expr"] for annotation in dashboard["annotations"]["list"])]


def sections() -> dict[str, str]:
    """Return the runbooks by the name of the alert."""
    parts = re.split(r"^## (\w+)$", RUNBOOKS.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def commands() -> list[str]:
    """Return every command in the runbooks, and in the messages of the alerts."""
    fences = re.findall(r"^```bash\n(.*?)^```$", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL)
    found = [line for fence in fences for line in fence.splitlines() if line.startswith("dump-ingest ")]
    shown = [
        command
        for rule in shipped_alerts()
        for command in _FIND_STORE.sub("", rule["annotations"].get("command", "")).split("; ")
        if command.startswith("dump-ingest ")
    ]
    return [*found, *(re.sub(r"\{\{.*?\}\}", "1", command) for command in shown)]


@cache
def all_cases() -> list[dict[str, Any]]:
    """Return the cases of promtool, parsed once: there are a thousand lines, and a test for each alert."""
    cases: list[dict[str, Any]] = yaml.safe_load(CASES.read_text())["tests"]
    return cases


@pytest.mark.parametrize("rule", shipped_alerts(), ids=lambda rule: rule["alert"])
class TestAlert:
    def test_says_what_how_bad_and_what_to_do(self, rule: dict[str, Any]) -> None:
        assert re.fullmatch(r"DumpIngest([A-Z][a-z]+)+", rule["alert"])
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["labels"]["audience"] in {"trainer", "platform"}
        assert set(rule["annotations"]) - {"command", "page_url"} == {"summary", "description", "runbook_url"}
        runbook = f"docs/runbooks.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == "{{ $externalLabels.runbooks }}" + runbook
        command = rule["annotations"].get("command", "")
        assert bool(_FIND_STORE.match(command)) == ("{{ $store }}" in command)

    def test_keeps_runs_apart(self, rule: dict[str, Any]) -> None:
        """Two runs in one Prometheus neither mute nor overwrite each other."""
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]):
            names = set(labels.split(", "))
            assert {"cluster", "namespace"} <= names or names == {"cluster", "instance", "name"}
            assert names & {"run", "cronjob", "name"}

    def test_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(self, rule: dict[str, Any]) -> None:
        name = rule["alert"]
        cases = [case for case in all_cases() if case["name"].startswith(name)]
        expected = [
            (ask["expr"], bool(ask.get("exp_samples")), str(ask.get("exp_samples")))
            for case in cases
            for ask in case.get("promql_expr_test", [])
        ]
        short = name.removeprefix("DumpIngest")
        assert any(fires and f'alertname="{name}"' in samples for _, fires, samples in expected) or any(
            short in state.fires for state in STATES
        )
        assert any(not fires and f'alertname="{name}"' in asked for asked, fires, _ in expected) or any(
            short in state.spares for state in STATES
        )


def test_inhibitions_stay_within_a_run_and_a_warning_mutes_no_critical_alert() -> None:
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in shipped_alerts()}

    def named(matchers: list[str]) -> set[str]:
        pattern = re.sub(r'^alertname=~?"(.*)"$', r"\1", matchers[0])
        names = {name for name in severities if re.fullmatch(pattern, name)}
        assert len(names) == pattern.count("|") + 1
        return {severities[name] for name in names}

    for inhibition in yaml.safe_load(ALERTMANAGER.read_text())["inhibit_rules"]:
        assert {"cluster", "namespace", "run"} <= set(inhibition["equal"])
        sources, targets = (named(inhibition[f"{end}_matchers"]) for end in ("source", "target"))
        assert sources == {"critical"} or targets == {"warning"}, inhibition


def test_every_reason_of_a_failure_is_in_its_runbook() -> None:
    text = sections()["DumpIngestCommitsFailing"]
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", text, re.MULTILINE)
    assert set(re.findall(r"`([a-z_]+)`", " ".join(rows))) - {"reason"} == set(REASONS)


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
    known = exported() | OTHERS | recorded()
    for expression in (*(rule["expr"] for rule in shipped_alerts()), *questions()):
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

    def test_the_shortest_cases_of_each_alert_come_out_as_expected(self, tmp_path: Path) -> None:
        """One in which it fires and one in which it does not."""
        shipped = yaml.safe_load(CASES.read_text())
        shortest: dict[tuple[str, bool], dict[str, Any]] = {}
        for case in sorted(shipped["tests"], key=_minutes):
            alert, _, what = case["name"].partition(" ")
            shortest.setdefault((alert, what.startswith("fires")), case)
        shutil.copy(RULES, tmp_path)
        path = tmp_path / CASES.name
        path.write_text(yaml.safe_dump(shipped | {"tests": [*shortest.values()]}, width=10**6))
        run_tool(["promtool", "test", "rules", str(path)], timeout_s=240)

    @pytest.mark.campaign
    def test_every_case_comes_out_as_expected(self) -> None:
        run_tool(["promtool", "test", "rules", str(CASES)], timeout_s=240)

    @pytest.mark.campaign
    @pytest.mark.parametrize("states", ["failures", "lasting_failures", "outages", "false_alarms", "disks"])
    def test_every_state_raises_the_alerts_that_it_must_and_no_others(
        self, states: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "states.yml"
        path.write_text(yaml.safe_dump(rules_tests(str(RULES))[states], width=10**6))
        run_tool(["promtool", "test", "rules", str(path)], timeout_s=240)

    @pytest.mark.campaign
    def test_a_cause_raises_what_is_known_of_it(self, tmp_path: Path) -> None:
        path = tmp_path / "causes.yml"
        path.write_text(yaml.safe_dump(causes_tests(str(RULES)), width=10**6))
        run_tool(["promtool", "test", "rules", str(path)], timeout_s=240)

    def test_of_a_cause_that_raises_several_alerts_one_is_sent(
        self, alertmanager: Callable[[Path], Alertmanager]
    ) -> None:
        server = alertmanager(ALERTMANAGER)
        server.tell([alert for run, cause in by_run().items() for alert in cause.raised_in(run)])
        expected = {(run, *sent) for run, cause in by_run().items() for sent in cause.sent}
        active: set[tuple[str, str, str]] = set()
        deadline = time.monotonic() + 10
        while (
            active != expected and time.monotonic() < deadline
        ):  # it learns of mutings after it has answered
            active = {(one["run"], receiver, one["alertname"]) for receiver, one in server.active()}
        assert active == expected

    def test_questions_of_the_dashboard_are_understood(self, tmp_path: Path) -> None:
        names = {
            "$__rate_interval": "1m",
            "$__range": "1h",
            "$instance": ".*",
            "$rank": ".*",
            "$namespace": ".*",
            "$run": ".*",
        }
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
            ("alertname=DumpIngestNotFinite audience=trainer severity=critical", "trainer-on-call"),
            ("alertname=DumpIngestRankStalled audience=trainer severity=warning", "trainer-tickets"),
            ("alertname=DumpIngestWatcherDown audience=platform severity=critical", "platform-on-call"),
            ("alertname=DumpIngestLagHigh audience=platform severity=warning", "platform-tickets"),
            ("alertname=SomethingElse severity=critical", "platform-tickets"),
        ],
    )
    def test_alerts_go_where_they_should(self, labels: str, receiver: str) -> None:
        said = run_tool(
            ["amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}", *labels.split()]
        )
        assert said.strip() == receiver
