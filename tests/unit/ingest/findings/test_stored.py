"""What rules find stands in the store next to the step."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

import ingest
from ingest.api import DumpStore
from ingest.findings.stored import read_series
from ingest.store_gc.plan import take_inventory
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly, plan_all
from tests.replicas import Replicas
from tests.rule_sets import consolidated, only, put
from workers.rules.schema import load_rules
from workers.rules.values import Rule, Selector

RULES = load_rules().enabled


@pytest.mark.parametrize("name", ["lenet-4rank", "tinybert-2rank", "dtypes-1rank", "longnames-1rank"])
def test_a_healthy_dump_fires_nothing(name: str, dumps: DumpLibrary, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    root = dumps[name]
    ingest_directly(root / "dump" if (root / "dump").is_dir() else root, store, rules=RULES)
    ingest.consolidate(store)
    listed = ingest.anomalies(ingest.open_store(str(store)))
    assert not listed.findings
    assert not listed.not_evaluated


def test_rules_change_no_fingerprint_and_no_key_of_other_objects(dumps: DumpLibrary, tmp_path: Path) -> None:
    dump = dumps["nan-log-2rank"] / "dump"
    plans = zip(plan_all(dump, tmp_path / "a"), plan_all(dump, tmp_path / "a", rules=RULES), strict=True)
    for without, with_rules in plans:
        assert without.fingerprint == with_rules.fingerprint
        assert replace(with_rules, rules=None) == without


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
    listed = ingest.anomalies(ingest.open_store(str(store)))
    assert any("rule broken" in line for line in listed.not_evaluated)


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"attributes": {"dump_ingest": {"findings": 3}}}',
        b"[" * 100_000,
        b"\xff",
        b"",
        None,
    ],
)
def test_a_damaged_document_is_named_and_the_rest_is_listed(damaged: bytes | None) -> None:
    objects = Replicas().objects
    put(objects, [[1], [1], [1], [1]])
    consolidated(objects, only(kind="unchanged", include="*Grad*"))
    (name,) = [name for name in objects.sizes("findings") if name.startswith("2.")]
    written = objects.get(f"findings/{name}") or b""
    endless = re.sub(rb'("totals":\s*\{"[^"]+":\s*)\d+', rb"\g<1>1e999", written)
    assert endless != written
    objects.put(f"findings/{name}", endless if damaged is None else damaged)
    listed = ingest.anomalies(DumpStore(objects))
    assert [finding.step for finding in listed.findings] == [3]
    assert any(name in line for line in listed.not_evaluated)


def test_the_document_of_another_step_or_generation_is_damaged() -> None:
    objects = Replicas().objects
    put(objects, [[1], [1], [1], [1]])
    consolidated(objects, only(kind="unchanged", include="*Grad*"))
    second, third = (
        name for step in "23" for name in objects.sizes("findings") if name.startswith(f"{step}.")
    )
    content = objects.get(f"findings/{third}")
    assert content is not None
    objects.put(f"findings/{second}", content)
    step, _, rest = third.partition(".")
    objects.put(f"findings/{step}.{'0' * 16}{rest[16:]}", content)
    damages: list[str] = []
    assert read_series(objects, None, damages).keys() & {2, 3} == {3}
    assert ["another generation" in damage for damage in damages] == [True, True]
    # What is not known is not deleted for lack of an anomaly.
    assert take_inventory(objects, anomalies=True).anomalous_steps >= {2, 3}
