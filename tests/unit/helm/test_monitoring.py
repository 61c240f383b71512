"""Alerts and dashboards of the chart: those of `deploy/`, and right for Prometheus and Grafana."""

import os
import shutil
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.charts import CHART, changed, data, find, objects, quick
from tests.servers.process import run_tool

DEPLOY = CHART.parent.parent / "deploy"


def rule_of(**values: Any) -> dict[str, Any]:
    """Return the groups of the rendered PrometheusRule, in which nothing is changed but by these values."""
    chosen = changed(quick("daemonset"), monitoring__prometheusRule={"enabled": True, **values})
    spec: dict[str, Any] = find(objects(chosen), "PrometheusRule", "dump-ingest")["spec"]
    return spec


def alerts_of(**values: Any) -> dict[str, Any]:
    return {
        rule["alert"]: rule
        for group in rule_of(**values)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }


def test_alerts_are_the_same_as_beside_a_plain_prometheus() -> None:
    plain = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    assert rule_of(matchRelease=False) == plain


def test_alerts_of_a_release_select_its_series_and_carry_its_labels() -> None:
    """Receivers and inhibitions need the labels, also where an expression aggregates them away."""
    plain, own = alerts_of(matchRelease=False), alerts_of()
    assert plain.keys() == own.keys()
    for name, alert in own.items():
        assert alert["labels"] == plain[name]["labels"] | {"run": "run1", "namespace": "train"}
        matchers = 'namespace="train",run="run1"'
        assert matchers in alert["expr"], name
        without = alert["expr"].replace(f"{{{matchers}}}", "").replace(f"{matchers},", "")
        assert without == plain[name]["expr"]


def test_alerts_of_findings_lead_to_the_page_of_the_release() -> None:
    url = "https://dumps.example.com/run1"
    chosen = changed(
        quick("daemonset"), monitoring__prometheusRule={"enabled": True}, config__page_url=f"{url}/"
    )
    groups = find(objects(chosen), "PrometheusRule", "dump-ingest")["spec"]["groups"]
    annotations = [rule.get("annotations", {}) for group in groups for rule in group["rules"]]
    links = [annotation["page_url"] for annotation in annotations if "page_url" in annotation]
    assert len(links) == 4
    for link in links:
        assert f'{{{{ if "{url}" }}}}{{{{ "{url}" }}}}/' in link
        assert "$externalLabels" not in link
    leading = [alert for alert in alerts_of().values() if "page_url" in alert["annotations"]]
    assert len(leading) == 4
    for alert in leading:
        assert "$externalLabels.page" in alert["annotations"]["page_url"]


@pytest.mark.skipif(
    shutil.which("promtool") is None and not os.environ.get("CI"),
    reason="not installed: promtool (make servers)",
)
def test_rendered_alerts_pass_promtool(tmp_path: Path) -> None:
    found = objects(quick("monitoring"))
    rules = find(found, "PrometheusRule", "dump-ingest")["spec"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    assert "SUCCESS" in run_tool(["promtool", "check", "rules", "--lint-fatal", str(tmp_path / "rules.yml")])


@pytest.mark.parametrize("prefix", ["https://git.example.com/", "https://git.example.com"])
def test_values_change_alerts_by_name(prefix: str) -> None:
    before = alerts_of(matchRelease=False)
    after = alerts_of(
        matchRelease=False,
        ruleLabels={"team": "training"},
        runbookUrlPrefix=prefix,
        disabled=["DumpIngestNoWatchers"],
        overrides={"DumpIngestWatcherDown": {"for": "15m", "labels": {"severity": "warning"}}},
    )
    assert before.keys() - after.keys() == {"DumpIngestNoWatchers"}
    down = after["DumpIngestWatcherDown"]
    assert down["for"] == "15m"
    assert down["labels"] == {"severity": "warning", "audience": "platform", "team": "training"}
    assert down["expr"] == before["DumpIngestWatcherDown"]["expr"]
    for name, alert in after.items():
        runbook = before[name]["annotations"]["runbook_url"]
        assert alert["annotations"]["runbook_url"] == f"https://git.example.com/{runbook}"
        assert alert["labels"]["team"] == "training"


@pytest.mark.parametrize("values", [{"disabled": ["LagHihg"]}, {"overrides": {"LagHihg": {"for": "1m"}}}])
def test_an_alert_that_does_not_exist_is_refused_by_name(values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmError, match="no alert LagHihg; there are DumpIngest"):
        rule_of(**values)


def test_alerts_know_the_jobs_by_the_names_that_the_monitors_give() -> None:
    """An alert on the job of watchers would never fire if they were scraped under another name."""
    found = objects(quick("monitoring"))
    jobs = {}
    for manifest in found:
        if manifest["kind"] in {"PodMonitor", "ServiceMonitor"}:
            for endpoint in manifest["spec"].get("podMetricsEndpoints", manifest["spec"].get("endpoints")):
                (job,) = (r["replacement"] for r in endpoint["relabelings"] if r["targetLabel"] == "job")
                jobs[manifest["metadata"]["name"], endpoint["port"]] = job
    assert jobs == {
        ("run1-dump-ingest-consolidator", "metrics"): "run1/dump-ingest-consolidator",
        ("run1-dump-ingest-scheduler", "http"): "run1/dump-ingest-scheduler",
        ("run1-dump-ingest-watcher", "http-0"): "run1/dump-ingest-worker",
        ("run1-dump-ingest-watcher", "metrics"): "run1/dump-ingest-watcher",
    }
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert {job.partition("/")[2] for job in jobs.values()} == {job["job_name"] for job in scraped}


@pytest.mark.parametrize("missing", ["prometheusRule", "dashboards"])
def test_a_chart_without_its_files_says_so(missing: str, tmp_path: Path) -> None:
    """An alert that is silently not there is worse than none."""
    shutil.copytree(CHART, tmp_path / "dump-ingest", ignore=shutil.ignore_patterns("rules.yml", "dashboards"))
    values = changed(quick("daemonset"), **{f"monitoring__{missing}__enabled": True})
    with (
        helm_python.Chart.load(tmp_path / "dump-ingest") as chart,
        pytest.raises(helm_python.HelmError, match=f"monitoring.{missing}.enabled: .* `make chart`"),
    ):
        chart.render(values, name="run1", namespace="train")


def test_labels_and_relabelings_reach_the_monitors() -> None:
    """Prometheus of kube-prometheus-stack takes only objects that carry the label of its release."""
    found = objects(quick("monitoring"))
    for manifest in (manifest for manifest in found if manifest["apiVersion"].startswith("monitoring.")):
        assert manifest["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    pod_monitor = find(found, "PodMonitor", "-watcher")
    assert pod_monitor["spec"]["podMetricsEndpoints"][0]["relabelings"][-1]["targetLabel"] == "node"


def test_settings_and_alerts_may_live_in_another_namespace() -> None:
    values = changed(quick("daemonset"), monitoring__podMonitor={"enabled": True, "namespace": "monitoring"})
    monitor = find(objects(values), "PodMonitor", "-watcher")
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["train"]}
    assert "config.yaml" in data(objects(values), "-config")
