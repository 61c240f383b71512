"""Rules over several steps and ranks, one step after the other."""

from dataclasses import replace

import ingest
from ingest.api import DumpStore
from tests.rule_sets import consolidated, only, put
from workers.rules.values import RuleSet
from workers.store.objects import ObjectStore


def test_each_rank_has_a_history_of_its_own(objects: ObjectStore) -> None:
    put(objects, [[1.0]] * 6 + [[100.0]], rank=0)
    put(objects, [[100.0]] * 7, rank=2)
    steps = consolidated(objects, only(kind="outlier", ratio_gt=10, include="*Grad*"))
    assert [(finding.rank, finding.step) for step in steps for finding in step.result.findings] == [(0, 6)]
    store = DumpStore(objects)
    (finding,) = ingest.anomalies(store, rank=0).findings
    assert store.step(0, 6).tables.label("op_name")[finding.row] == "Gradients_net-op0"
    assert not ingest.anomalies(store, rank=2).findings


def test_a_condition_is_about_the_tensor_as_it_is_in_the_step(objects: ObjectStore) -> None:
    put(objects, [[1.0]] * 6 + [[100.0], [1.0], [300.0]])
    rule = {"kind": "outlier", "ratio_gt": 10}

    def steps(where: str) -> list[int]:
        chosen = only(where=where, **rule)
        result = ingest.test_rules(DumpStore(objects), chosen).rules[0]
        assert not result.failed
        return [step for _, step in result.places]

    assert steps("role == 'gradient'") == [6, 8]
    assert steps("role == 'gradient' and max > 200") == [8]
    assert steps("step < 8 and rank == 0 and io == 'output'") == [6]
    assert steps("role == 'weight'") == []


def test_a_condition_that_cannot_be_evaluated_stops_its_own_rule_alone(objects: ObjectStore) -> None:
    put(objects, [[1.0]] * 6 + [[100.0]])
    good = only(kind="outlier", ratio_gt=10, include="*Grad*").rules[0]
    bad = replace(good, name="bad", where="max + 'x' > 1")
    results = ingest.test_rules(DumpStore(objects), RuleSet((good, bad), "0")).rules
    assert [(result.rule, result.findings, len(result.failed)) for result in results] == [
        ("mine", 1, 0),
        ("bad", 0, 7),
    ]
    assert "only numbers can be added" in results[1].failed[0]
