"""Alerts and dashboards of the chart: those of `deploy/`, and right for Prometheus and Grafana."""

from typing import Any

import helm_python
import pytest
import yaml

from tests.charts import CHART, changed, find, objects, quick

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
