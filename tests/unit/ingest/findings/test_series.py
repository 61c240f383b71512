"""Rules over several steps and ranks, one step after the other."""

from dataclasses import replace

import ingest
from ingest.api import DumpStore
from tests.replicas import Replicas
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


def test_a_limit_leaves_findings_of_each_rank_and_what_is_beyond_is_said() -> None:
    replicas = Replicas()
    for rank in range(2):
        for step in range(2):
            replicas.put(rank, step, {f"Adam.w{number}.input.0": number for number in range(3)})
    rules = only(kind="unchanged", steps=2, limit=3)
    consolidated(replicas.objects, rules)
    whole = ingest.anomalies(replicas.store)
    assert [(finding.rank, finding.row) for finding in whole.findings] == [(0, 0), (0, 1), (1, 0)]
    assert whole.totals == {"mine": 6}
    beyond = "3 further findings on any rank, of which only the number is known"
    of_rank = ingest.anomalies(replicas.store, rank=1)
    assert (of_rank.totals, of_rank.not_evaluated[-1]) == ({"mine": 1}, f"step 1: rule mine: {beyond}")
    (tested,) = ingest.test_rules(replicas.store, rules, rank=1).rules
    assert (tested.findings, tested.failed) == (1, (f"step 1: {beyond}",))
