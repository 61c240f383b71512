"""What the list says of a run, from the commits of its newest steps alone."""

import shutil
from pathlib import Path

import pytest

import ingest
from bench.steps import commit_run
from ingest.page import overview as module
from ingest.page.overview import Overview
from tests.diverging import WEIGHT, replicas
from tests.rule_sets import consolidated
from workers.rules.load import load_rules


def of(store: Path) -> Overview:
    return Overview.of(ingest.open_store(store))


def test_a_run_is_told_by_its_last_step_and_what_is_not_finite_even_without_rules(nan_log: Path) -> None:
    seen = of(nan_log)
    assert (seen.ranks, seen.steps, seen.examined, seen.last_step) == ((0, 1), 3, 3, 3)
    assert seen.worst is not None
    assert seen.worst.severity == "critical"
    assert (seen.worst.rules, seen.worst.ranks, seen.worst.steps) == (
        ("NaN or Inf",),
        (1,),
        (2, 3),
    )
    assert seen.committed_at == max(
        step.commit.record.committed_at for step in ingest.open_store(nan_log).select(step=3)
    )


def test_of_a_long_run_the_newest_steps_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COMMITS", 7)
    commit_run(str(tmp_path / "run"), range(2), range(6), ["op"] * 3, born=1, rules=load_rules().enabled)
    seen = of(tmp_path / "run")
    assert (seen.steps, seen.examined, seen.last_step) == (6, 3, 5)
    assert seen.worst is not None
    assert (seen.worst.severity, seen.worst.rules, seen.worst.steps) == ("critical", ("nan",), (3, 4, 5))


def test_what_is_only_listed_or_damaged_hides_nothing(nan_log: Path, tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    shutil.copytree(nan_log, store)
    (store / "rank_0" / "step_4" / "begun").mkdir(parents=True)
    (store / "rank_0" / "step_3" / "zarr.json").write_bytes(b"{")
    seen = of(store)
    assert (seen.last_step, seen.damaged, seen.steps) == (3, 1, 4)


def test_rules_over_several_ranks_count() -> None:
    made = replicas(off=[(3, 2, WEIGHT)])
    assert Overview.of(made.store).worst is None
    consolidated(made.objects, load_rules().enabled)
    worst = Overview.of(made.store).worst
    assert worst is not None
    assert (worst.severity, worst.steps) == ("critical", (2,))


def test_a_run_without_a_step_has_nothing(tmp_path: Path) -> None:
    store = tmp_path / "run.zarr"
    commit_run(str(store), [], [], [])
    assert of(store) == Overview()
