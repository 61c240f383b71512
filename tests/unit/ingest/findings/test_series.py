"""Rules over steps and ranks: by definition, once, and again after anything was killed or came late."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ingest
from bench.steps import commit_tables, make_tables
from ingest.api import DumpStore
from ingest.consolidating.consolidator import Consolidator
from ingest.findings import series as module
from ingest.findings.evaluator import SeriesEvaluator
from ingest.findings.series import StepFindings
from tests.replicas import Replicas
from workers.arrays.digest import digest
from workers.arrays.statistics import summarise
from workers.model import StepKey
from workers.rules.load import load_rules, rule_set
from workers.rules.schema import RULE
from workers.rules.values import RuleSet
from workers.store.objects import ObjectStore
from workers.store.tables import LABELS

GRADIENT = "MatMul.Gradients_net-op0.output.0"


def rules(**rule: Any) -> RuleSet:
    return rule_set([RULE.validate_python({"name": "mine", **rule})])


def put(objects: ObjectStore, values: Sequence[Sequence[float] | None], rank: int = 0) -> None:
    """Commit one tensor, step by step; None is a step without it."""
    for step, one in enumerate(values):
        tensors = {"Relu.net.output.0": [step, step], **({} if one is None else {GRADIENT: one})}
        key = StepKey(rank, step)
        tables = make_tables(key, list(tensors))
        for row, (name, content) in enumerate(tensors.items()):
            array = np.array(content, np.float32)
            op_type, op_name, _, _ = name.split(".")
            tables.labels[row, LABELS.index("op_type")] = op_type
            tables.labels[row, LABELS.index("op_name")] = op_name
            tables.statistics[row] = summarise(array).as_row()
            tables.digest[row] = np.frombuffer(digest(array.tobytes()), np.uint8)
        commit_tables(objects, key, tables)


@pytest.fixture
def objects() -> ObjectStore:
    """An empty store in memory."""
    return Replicas().objects


def evaluated(objects: ObjectStore, chosen: RuleSet) -> list[StepFindings]:
    # Not entered: nobody else wants the lease.
    return list(Consolidator(objects, keeper=SeriesEvaluator(objects, chosen)).once().findings)


def steps_found(values: Sequence[Sequence[float] | None], **rule: Any) -> list[int]:
    objects = Replicas().objects
    put(objects, values)
    found = evaluated(objects, rules(include="*Gradients*", **rule))
    assert not any(one.found.failed for one in found)
    return [one.step for one in found if one.found.findings]


def test_unchanged_is_the_same_bytes_in_so_many_steps() -> None:
    values: list[list[float]] = [[1], [2], [2], [2], [2], [3], [2]]
    assert steps_found(values, kind="unchanged", steps=3) == [3, 4]
    assert steps_found(values, kind="unchanged", steps=2) == [2, 3, 4]
    assert steps_found([[1], [1], None, [1], [1], [1]], kind="unchanged") == [5]
    assert steps_found([[1], [1], [1]], kind="unchanged", elements_ge=2) == []


def test_change_is_relative_to_the_step_before() -> None:
    values: list[list[float]] = [[3, 4], [3.3, 4.4], [6, 8], [0, 0], [1, 0]]
    assert steps_found(values, kind="change", ratio_gt=0.11) == [2, 3, 4]
    assert steps_found(values, kind="change", ratio_gt=0.11, before_ge=0.1) == [2, 3]
    assert steps_found([[1], None, [9]], kind="change", ratio_gt=0.1) == []


def test_explosion_is_beyond_ratio_and_spread_of_the_history() -> None:
    steady: list[list[float]] = [[1.0], [1.1], [0.9], [1.05], [0.95], [1.0]]
    rule = {"kind": "outlier", "ratio_gt": 10}
    assert steps_found([*steady, [11.0], [1.0]], **rule) == [6]
    assert steps_found([*steady, [9.0]], **rule) == []
    wild = [[1.0], [50.0], [0.02], [30.0], [0.5], [2.0], [20.0]]
    assert steps_found(wild, **rule) == []
    assert steps_found([[1.0]] * 5 + [[11.0]], **rule) == [5]
    assert steps_found([[1.0]] * 4 + [[11.0]], **rule) == []


def test_collapse_is_the_other_way() -> None:
    steady: list[list[float]] = [[1.0], [1.1], [0.9], [1.05], [0.95], [1.0]]
    rule = {"kind": "outlier", "direction": "below", "ratio_gt": 1000}
    assert steps_found([*steady, [1e-4], [1.0], [0.0]], **rule) == [6, 8]
    assert steps_found([*steady, [0.01], [1e9]], **rule) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=16), st.floats(1e-6, 1e6))
def test_the_z_score_is_that_of_its_definition(history: list[float], now: float) -> None:
    rule = rules(kind="outlier", ratio_gt=1.0001, z_gt=0, history=16).rules[0]

    def seen(values: Iterable[float]) -> module._Seen:
        row = np.array([list(values)])
        shape = row.shape
        return module._Seen(
            (0,),
            np.zeros(shape, np.int32),
            {"l2_norm": row, "count": np.ones(shape)},
            np.zeros((1, 1, 0), "u1"),
        )

    table = module._Table(seen([now]), [seen([one]) for one in history], 1)
    with np.errstate(all="ignore"):
        hits, ratio, _, say = module._outlier(rule, table)
    logs = np.log2(history)
    median = np.median(logs)
    spread = np.median(np.abs(logs - median))
    assert ratio[0, 0] == pytest.approx(now / 2**median)
    off = math.log2(now) - median
    z = 0.6745 * off / spread if spread else math.copysign(math.inf, off) if off else math.nan
    assert f"z {z:.3g}" in say(0, 0) or z == pytest.approx(float(say(0, 0).rpartition(" ")[2]), rel=1e-2)
    assert bool(hits[0, 0]) == (ratio[0, 0] > 1.0001 and z > 0)


def test_each_rank_has_a_history_of_its_own(objects: ObjectStore) -> None:
    put(objects, [[1.0]] * 6 + [[100.0]], rank=0)
    put(objects, [[100.0]] * 7, rank=2)
    found = evaluated(objects, rules(kind="outlier", ratio_gt=10, include="*Grad*"))
    assert [(one.rank, one.step) for step in found for one in step.found.findings] == [(0, 6)]
    store = DumpStore(objects)
    (finding,) = ingest.anomalies(store, rank=0).findings
    assert store.step(0, 6).tables.label("op_name")[finding.row] == "Gradients_net-op0"
    assert not ingest.anomalies(store, rank=2).findings


def documents(objects: ObjectStore) -> dict[str, bytes | None]:
    return {name: objects.get(f"findings/{name}") for name in objects.sizes("findings")}


def test_a_step_is_evaluated_once_also_by_another_process_and_after_a_rebuild(objects: ObjectStore) -> None:
    put(objects, [[1], [1], [1]])
    chosen = rules(kind="unchanged", include="*Grad*")
    first = evaluated(objects, chosen)
    assert [one.step for one in first if one.found.findings] == [2]
    written = documents(objects)
    assert len(written) == 1 + 3
    assert evaluated(objects, chosen) == []
    other = Consolidator(objects, keeper=SeriesEvaluator(objects, rules(kind="unchanged", steps=2)))
    assert not other.once(rebuild=True).findings
    assert documents(objects) == written


def test_killed_before_it_was_written_a_step_is_evaluated_again(objects: ObjectStore) -> None:
    put(objects, [[1], [1], [1], [1]])
    chosen = rules(kind="unchanged", include="*Grad*")
    killed = Consolidator(objects, keeper=SeriesEvaluator(objects, chosen))
    assert [one.step for one in killed.once(most=2).findings] == [0, 1]
    assert [(one.step, len(one.found.findings)) for one in evaluated(objects, chosen)] == [(2, 1), (3, 1)]


def test_a_step_that_is_dumped_again_is_evaluated_again(objects: ObjectStore) -> None:
    chosen = rules(kind="unchanged", include="*Grad*")
    put(objects, [[1], [1], [1]])
    evaluated(objects, chosen)
    assert [one.step for one in ingest.anomalies(DumpStore(objects)).findings] == [2]
    put(objects, [[1], [1], [5]])
    assert [one.step for one in evaluated(objects, chosen)] == [2]
    assert not ingest.anomalies(DumpStore(objects)).findings


def test_a_step_that_cannot_be_read_is_named_and_the_others_are_evaluated(objects: ObjectStore) -> None:
    put(objects, [[1], [1], [2], [2], [2]])
    chosen = rules(kind="unchanged", include="*Grad*")
    keeper = SeriesEvaluator(objects, chosen)
    # As the view has it, for the consolidator would not take in what is damaged.
    generations = {step: {0: str(step)} for step in (0, 1, 2, 3, 4, 9)}
    for name in [name for name in objects.sizes("rank_0/step_1") if name.endswith("labels/c/0/0")]:
        objects.put(f"rank_0/step_1/{name}", b"damaged")
    found = list(keeper.evaluate(generations))
    assert [one.step for one in found if one.found.failed] == [1, 9]
    assert [one.step for one in found if one.found.findings] == [4]
    assert any("step 1: rule mine" in one for one in ingest.anomalies(DumpStore(objects)).not_evaluated)


def test_a_damaged_document_is_named_and_the_rest_is_listed(objects: ObjectStore) -> None:
    put(objects, [[1], [1], [1], [1]])
    evaluated(objects, rules(kind="unchanged", include="*Grad*"))
    (name,) = [name for name in objects.sizes("findings") if name.startswith("2.")]
    objects.put(f"findings/{name}", b'{"attributes": {"dump_ingest": {"findings": 3}}}')
    found = ingest.anomalies(DumpStore(objects))
    assert [one.step for one in found.findings] == [3]
    assert any(name in one for one in found.not_evaluated)


def test_replicas_that_differ_and_what_a_rank_lacks_are_found() -> None:
    replicas = Replicas()
    names = [f"AllReduce.net_AllReduce-op{i}.output.0" for i in range(4)]
    for step in range(3):
        for rank in range(4):
            odd = step == 2 and rank == 3
            contents = {name: 10 * step + number for number, name in enumerate(names)}
            if odd:
                contents[names[1]] = 99
            if not (step == 1 and rank == 0):
                replicas.put(rank, step, contents)
    found = evaluated(replicas.objects, load_rules().enabled)
    told = [(one.rule, one.rank, one.step) for step in found for one in step.found.findings]
    assert told == [("missing", 0, 1), ("replicas_diverge", 3, 2)]
    (finding,) = found[2].found.findings
    assert finding.name == names[1]
    assert finding.reason == "collective output: rank 3 differs from ranks 0-2, by digest"
    assert {one.rule: one.findings for one in ingest.test_rules(replicas.store).rules if one.findings} == {
        "missing": 1,
        "replicas_diverge": 1,
    }


def test_history_takes_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HISTORY_NBYTES", 1)
    assert steps_found([[1]] * 6, kind="unchanged", steps=2) == [1, 2, 3, 4, 5]
