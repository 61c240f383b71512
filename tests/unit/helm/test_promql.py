"""Matchers in PromQL: on each selector, and on nothing else."""

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from helm.generate import of_one_release, with_matchers
from tests.charts import CHART
from tests.servers.process import run_tool

RULES = CHART.parent.parent / "deploy" / "prometheus" / "rules.yml"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("up", "up{M}"),
        ('up{job="a"} == 0', 'up{M,job="a"} == 0'),
        (
            "sum by (job, run) (rate(dask_a_total[5m])) > 0",
            "sum by (job, run) (rate(dask_a_total{M}[5m])) > 0",
        ),
        (
            "kube_a and on (x) group_left (y) max without (z) (dump_ingest:process_age:seconds)",
            "kube_a{M} and on (x) group_left (y) max without (z) (dump_ingest:process_age:seconds{M})",
        ),
        ("count(up offset 30m) > bool 1", "count(up{M} offset 30m) > bool 1"),
        ('up{job=~".*dump-ingest.*"}', 'up{M,job=~".*dump-ingest.*"}'),
    ],
)
def test_each_selector_gets_the_matchers(before: str, after: str) -> None:
    assert with_matchers(before, "M") == after


def test_no_selector_of_the_rules_is_without_the_matchers() -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            scoped = with_matchers(rule["expr"], "M")
            assert re.findall(r"\{(?!M[,}])|[\w:]+(?=\[)", scoped) == [], scoped


@pytest.mark.skipif(
    shutil.which("promtool") is None and not os.environ.get("CI"),
    reason="not installed: promtool (make servers)",
)
def test_rules_of_one_release_pass_promtool(tmp_path: Path) -> None:
    text = of_one_release(RULES.read_text())
    assert len(yaml.safe_load(text)["groups"]) == len(yaml.safe_load(RULES.read_text())["groups"])
    (tmp_path / "rules.yml").write_text(text)
    assert "SUCCESS" in run_tool(["promtool", "check", "rules", str(tmp_path / "rules.yml")])
