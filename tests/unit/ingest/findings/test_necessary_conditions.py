"""A rule that fires has its necessary condition fulfilled, and backtests skip steps only by that."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.findings.necessary_conditions import necessary_condition
from ingest.reader.cubes import conditions as cube_conditions
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from workers.rules.load import load_rules
from workers.store.step import StoredStep

RULES = """
builtin: false
rules:
  - {name: large, kind: too_large, max_gt: 500.0, abs_max_gt: 600.0}
  - {name: small, kind: too_small, abs_max_lt: 4.0, severity: info}
  - {name: outside, kind: range, min_ge: -500.0, max_le: 600.0, spread_gt: 900.0}
  - {name: empty, kind: zeros, share_ge: 0.9}
  - {name: not_finite, kind: not_finite}
  - {name: casts, kind: cast, format: e4m3, overflow_gt: 0.01, underflow_gt: 0.9}
  - {name: tail, kind: percentile, percent: 99.9, magnitude: true, gt: 300.0}
  - {name: asked, kind: condition, where: p99 > 400}
"""
CONDITIONS = {
    "large": "((abs(min) > 600.0 or abs(max) > 600.0) or (max > 500.0))",
    "small": "((abs(min) < 4.0 and abs(max) < 4.0))",
    "outside": "((min < -500.0) or (max > 600.0) or (max - min > 900.0))",
    "empty": "(zero_count / count >= 0.9 and count >= 1.0)",
    "not_finite": "((nan_count > 0) or (pos_inf_count > 0) or (neg_inf_count > 0))",
    "casts": "((overflow_e4m3 > 0.01) or (underflow_e4m3 > 0.9))",
    "tail": "((abs_p99.9 > 300.0))",
    "asked": "(p99 > 400)",
}


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yml"
    path.write_text(RULES)
    return path


def test_conditions_are_those_of_the_kinds(rules: Path) -> None:
    made = {rule.name: necessary_condition(rule) for rule in load_rules(rules).enabled.rules}
    assert made == CONDITIONS


def test_rules_that_need_the_index_have_none() -> None:
    made = {rule.kind: necessary_condition(rule) for rule in load_rules().enabled.step_rules}
    assert [kind for kind in ("headroom", "disagreement", "overflow") if made[kind]] == []


@pytest.mark.parametrize("rule", CONDITIONS)
def test_backtests_find_the_same_with_the_view_and_without(
    rule: str, rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cube_conditions, "LEAST_STEPS", 1)
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in range(8):
        spread = (np.random.default_rng(step).standard_normal(200) * 3.0**step).astype("<f4")
        if step == 2:
            spread[3] = np.nan
        if step == 5:
            spread[:190] = 0
        dump.add(spread, tensor_name(), step=step)
    ingest_directly(dump.root, store, sketches=True)
    ingest.consolidate(store)
    read: set[int | None] = set()
    of_step = StoredStep._read_tables

    def noted(step: StoredStep, objects: list[str]) -> dict[str, bytes]:
        read.add(step.key.step)
        return of_step(step, objects)

    monkeypatch.setattr(StoredStep, "_read_tables", noted)
    (tested,) = ingest.test_rules(ingest.open_store(store), rules, rule=rule).rules
    assert 0 < len(read) < 8
    assert tested.findings
    shutil.rmtree(store / "consolidated")
    (plain,) = ingest.test_rules(ingest.open_store(store), rules, rule=rule).rules
    assert repr(tested.to_dict()) == repr(plain.to_dict())  # some values are NaN
