"""The list of findings: what is in it, in which order, and what is not known."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.api import DumpStore
from ingest.reader.step_tables import findings_of
from tests.dumps import DumpLibrary
from tests.in_process import run_here
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly, plan_all
from tests.pipeline import run as publish
from tests.replicas import Replicas
from tests.rule_sets import consolidated, only, put
from workers.errors import UsageError
from workers.rules.schema import load_rules

RULES = load_rules().enabled


def test_findings_come_worst_first_then_in_order(nan: Path) -> None:
    listed = ingest.anomalies(ingest.open_store(str(nan)))
    first = listed.findings[0]
    assert (first.rule, first.rank, first.step) == ("nan", 1, 2)
    assert first.name == "Log.Default_net-LogLoss_Log-op0.output.0"
    orders = [finding.order for finding in listed.findings]
    assert orders == sorted(orders)
    assert listed.totals == {"nan": 10, "loss_not_finite": 4}
    assert listed.by_severity == {"critical": 14}
    assert list(listed.to_pandas()["rule"].unique()) == ["nan", "loss_not_finite"]


def test_a_step_that_nobody_looked_at_says_so(dumps: DumpLibrary, tmp_path: Path) -> None:
    """No finding means nothing there."""
    store = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    opened = ingest.open_store(str(store))
    assert findings_of(opened.step(1, 2)) is None
    listed = ingest.anomalies(opened)
    assert not listed.findings
    assert listed.not_evaluated == (
        "ranks 0-1, steps 1-3: no rules were evaluated when it was committed",
        "steps 1-3: rules over several steps or ranks were not evaluated; `consolidate` does that",
    )


def test_another_set_of_rules_stands_beside_and_takes_nothing_away(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    dump.add(np.array([np.nan, 3], np.float32))
    other = only(kind="too_large", max_gt=1)
    for rules in (RULES, other):
        for plan in plan_all(dump.root, store, rules=rules):
            publish(plan)
    (finding,) = ingest.anomalies(ingest.open_store(str(store))).findings
    assert finding.rule == "mine"
    assert len(list(store.glob("rank_0/step_0/*/findings/*"))) == 3  # two sets, and the metadata of the group


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({"severity": "bad"}, "not a severity"), ({"rule": "nam"}, "no rule"), ({"rank": 9}, "no rank 9")],
)
def test_a_wrong_question_is_refused(nan: Path, wanted: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ingest.anomalies(ingest.open_store(str(nan)), **wanted)  # type: ignore[arg-type]


def test_the_command_lists_says_what_it_cannot_know_and_names_mistakes(nan: Path) -> None:
    done = run_here("anomalies", nan, "--rule", "nan", "--step", 3, "--limit", 1, "--json")
    rows = done.json
    assert [(row["rule"], row["rank"], row["step"]) for row in rows] == [("nan", 1, 3)]
    assert done.stderr.startswith("5 findings: 5 critical, the first 1 shown")
    assert list(rows[0]) == [
        "rule", "severity", "rank", "step", "row", "graph", "name", "value", "threshold", "reason",
        "cause", "level", "since",
    ]  # fmt: skip
    tried = run_here("rules", "test", nan, "--rule", "*finite", "--json").json
    assert [rule["rule"] for rule in tried["rules"]] == [
        "loss_not_finite",
        "gradient_not_finite",
        "parameter_not_finite",
    ]


def test_a_rule_that_became_milder_hides_nothing_that_it_found_before() -> None:
    """New rules apply to later steps: what they found before keeps its severity."""
    objects = Replicas().objects
    put(objects, [[1], [1]])
    consolidated(objects, only(kind="unchanged", steps=2, include="*Grad*", severity="critical"))
    put(objects, [[1], [1], [1], [1]])
    consolidated(objects, only(kind="unchanged", steps=2, include="*Grad*", severity="info"))
    store = DumpStore(objects)
    assert ingest.anomalies(store).totals == {"mine": 3}
    critical = ingest.anomalies(store, severity="critical")
    assert ([finding.step for finding in critical.findings], critical.totals) == ([1], {"mine": 1})
    assert critical.severities == {"mine": "critical"}
