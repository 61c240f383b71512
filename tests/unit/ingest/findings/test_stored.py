"""What rules find stands in the store beside the step, once, and is found again."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

import ingest
from ingest.reader.step_findings import findings_of
from tests.cli import run
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly, plan_all
from tests.pipeline import run as publish
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.rules.load import load_rules, rule_set
from workers.rules.schema import RULE
from workers.rules.values import Rule, Selector
from workers.store import commit
from workers.store.objects import open_objects, resolve

RULES = load_rules().enabled
NAN_TENSORS = 10


@pytest.fixture(scope="module")
def nan(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the dump with NaN, its steps looked at by the built-in rules."""
    store = tmp_path_factory.mktemp("rules") / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store, rules=RULES)
    ingest.consolidate(store)
    return store


def test_nan_is_found_in_exactly_the_tensors_that_have_it(nan: Path, dumps: DumpLibrary) -> None:
    """By the count of who made the dump."""
    truth = json.loads((dumps["nan-log-2rank"] / "truth.json").read_text())["files"]
    expected = {source for source, counts in truth.items() if counts["nan"]}
    store = ingest.open_store(str(nan))
    found = ingest.anomalies(store, rule="nan")
    sources = {
        str(store.step(one.rank, one.step).tables.label("source")[one.row])
        for one in found.findings
        if one.rank is not None
    }
    assert sources == expected
    assert len(found.findings) == NAN_TENSORS == len(expected)
    assert not found.not_evaluated
    assert not ingest.anomalies(store, severity="info", rank=0).findings


def test_findings_come_worst_first_then_in_order(nan: Path) -> None:
    found = ingest.anomalies(ingest.open_store(str(nan)))
    first = found.findings[0]
    assert (first.rule, first.rank, first.step) == ("nan", 1, 2)
    assert first.name == "Log.Default_net-LogLoss_Log-op0.output.0"
    assert [one.order for one in found.findings] == sorted(one.order for one in found.findings)
    assert found.totals == {"nan": 10, "loss_not_finite": 4}
    assert found.by_severity == {"critical": 14}
    assert list(found.to_pandas()["rule"].unique()) == ["nan", "loss_not_finite"]


@pytest.mark.parametrize("name", ["lenet-4rank", "tinybert-2rank", "dtypes-1rank", "longnames-1rank"])
def test_a_healthy_dump_fires_nothing(name: str, dumps: DumpLibrary, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    root = dumps[name]
    ingest_directly(root / "dump" if (root / "dump").is_dir() else root, store, rules=RULES)
    ingest.consolidate(store)
    found = ingest.anomalies(ingest.open_store(str(store)))
    assert not found.findings
    assert not found.not_evaluated


def test_rules_change_no_fingerprint_and_no_key_of_other_objects(dumps: DumpLibrary, tmp_path: Path) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    plans = zip(plan_all(dump, tmp_path / "a"), plan_all(dump, tmp_path / "a", rules=RULES), strict=True)
    for without, with_rules in plans:
        assert without.fingerprint == with_rules.fingerprint
        assert replace(with_rules, rules=None) == without


def test_a_step_that_nobody_looked_at_says_so(dumps: DumpLibrary, tmp_path: Path) -> None:
    """No finding means nothing there."""
    store = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    opened = ingest.open_store(str(store))
    assert findings_of(opened.step(1, 2)) is None
    found = ingest.anomalies(opened)
    assert not found.findings
    assert found.not_evaluated == (
        "rank 0-1 step 1-3: no rules were evaluated when it was committed",
        "step 1-3: no rules over steps and ranks were evaluated, `consolidate` does it",
    )


def test_findings_are_plain_zarr_and_nothing_warns(nan: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        root = zarr.open_group(str(nan), mode="r")
        assert sum(1 for _ in root.members(max_depth=None)) > 0
        leaf = zarr.open_group(str(nan / "rank_1/step_2"), mode="r")
        record = leaf.attrs["dump_ingest"]
        assert isinstance(record, dict)
        where = f"{record['fingerprint']}/findings/{record['summary']['rules']}"
        labels = leaf[f"{where}/labels"]
        assert isinstance(labels, zarr.Array)
        assert labels.attrs["fields"] == ["rule", "severity", "graph", "name", "reason"]
        assert labels[0, 0] == "nan"
        series = [root[f"findings/{name}"].attrs["dump_ingest"] for name, _ in root["findings"].groups()]  # type: ignore[union-attr]
        assert len(series) == 3
        rules = leaf[where].attrs["rules"]
        assert isinstance(rules, dict)
        assert rules["nan"]["of"] == ["nan"]


def test_verify_reads_findings_too(dumps: DumpLibrary, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store, rules=RULES)
    assert not list(ingest.open_store(str(store)).verify(1, 2))
    (labels,) = (store / "rank_1/step_2").glob("*/findings/*/labels/c/0/0")
    labels.write_bytes(labels.read_bytes()[:-1] + b"x")
    opened = ingest.open_store(str(store))
    with pytest.raises(DamagedStore):
        findings_of(opened.step(1, 2))
    assert [one.key for one in opened.verify(1, 2)] == [StepKey(1, 2)]
    assert any("rank 1 step 2" in one for one in ingest.anomalies(opened).not_evaluated)


def test_another_set_of_rules_stands_beside_and_takes_nothing_away(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    dump.add(np.array([np.nan, 3], np.float32))
    other = rule_set([RULE.validate_python({"name": "mine", "kind": "too_large", "max_gt": 1})])
    for rules in (RULES, other):
        for plan in plan_all(dump.root, store, rules=rules):
            publish(plan)
    (one,) = ingest.anomalies(ingest.open_store(str(store))).findings
    assert one.rule == "mine"
    assert len(list(store.glob("rank_0/step_0/*/findings/*"))) == 3  # two sets, and the metadata of the group


def test_a_broken_rule_never_stops_a_commit(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    dump.add(np.array([np.nan, 3], np.float32))
    # As a service of another version might send it.
    broken = Rule("broken", "too_large", "info", Selector(), (("max_gt", 1.0),), where="no_column > 1")
    rules = replace(RULES, rules=(broken, *RULES.rules))
    (summary,) = ingest_directly(dump.root, store, rules=rules)
    assert summary.findings == {"nan": 1}
    assert "no_column" in summary.failed_rules["broken"]
    assert summary.status == "complete"
    assert any("rule broken" in one for one in ingest.anomalies(ingest.open_store(str(store))).not_evaluated)


def test_totals_are_in_the_commit_record_and_first_findings_are_not(nan: Path) -> None:
    found = commit.read(open_objects(resolve(nan)), StepKey(1, 2))
    assert found is not None
    assert found.summary.findings == {"nan": 5, "loss_not_finite": 2}
    assert found.summary.findings_by_severity == {"critical": 7}
    assert "first_findings" not in found.record["summary"]
    assert found.summary.rules == RULES.digest


def test_a_mask_of_infinity_is_excluded_by_a_selector(tmp_path: Path) -> None:
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    mask = np.array([[0, -np.inf], [0, 0]], np.float32)
    for op in ("FillV2.net_Fill-op0", "Add.net_attention_mask-op1", "Add.net_Add-op2"):
        dump.add(mask, tensor_name(op))
    (summary,) = ingest_directly(dump.root, store, rules=RULES)
    assert summary.findings == {"inf": 1}
    assert summary.first_findings[0].name == "Add.net_Add-op2.output.0"
    file = tmp_path / "rules.yml"
    file.write_text("rules:\n  - name: inf\n    of: [pos_inf]\n")
    tried = ingest.test_rules(ingest.open_store(str(store)), file)
    assert sum(one.findings for one in tried.rules) == 0


def test_rules_are_tried_on_what_is_stored_and_write_nothing(nan: Path) -> None:
    before = sorted(str(path) for path in nan.rglob("*"))
    tried = ingest.test_rules(ingest.open_store(str(nan)))
    assert sorted(str(path) for path in nan.rglob("*")) == before
    by_name = {one.rule: one for one in tried.rules}
    assert len(by_name) == len(RULES.rules)
    nans = by_name["nan"]
    assert (nans.findings, nans.ranks, nans.steps) == (NAN_TENSORS, "1", "2-3")
    assert nans.places == {(1, 2): 5, (1, 3): 5}
    assert nans.first[0].name == "Log.Default_net-LogLoss_Log-op0.output.0"
    assert by_name["inf"].findings == 0
    assert tried.to_pandas()["findings"].sum() == 14


def test_the_command_lists_says_what_it_cannot_know_and_names_mistakes(nan: Path) -> None:
    done = run("anomalies", nan, "--rule", "nan", "--step", 3, "--limit", 1, "--json")
    rows = done.json
    assert [(row["rule"], row["rank"], row["step"]) for row in rows] == [("nan", 1, 3)]
    assert done.stderr.startswith("5 findings: 5 critical; the first 1 shown")
    assert list(rows[0]) == [
        "rule", "severity", "rank", "step", "row", "graph", "name", "value", "threshold", "reason",
    ]  # fmt: skip
    tried = run("rules", "test", nan, "--rule", "*finite", "--json").json
    assert [one["rule"] for one in tried["rules"]] == [
        "loss_not_finite",
        "gradient_not_finite",
        "parameter_not_finite",
    ]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({"severity": "bad"}, "no severity"), ({"rule": "nam"}, "no rule"), ({"rank": 9}, "no rank 9")],
)
def test_a_wrong_question_is_refused(nan: Path, wanted: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ingest.anomalies(ingest.open_store(str(nan)), **wanted)  # type: ignore[arg-type]
