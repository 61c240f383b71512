"""Rules that compare ranks."""

import ingest
from ingest.findings.replicas import KINDS
from tests.replicas import Replicas
from tests.rule_sets import consolidated
from workers.rules.load import load_rules
from workers.rules.schema import MODELS
from workers.rules.values import Scope


def test_every_kind_over_ranks_has_an_evaluator() -> None:
    assert set(KINDS) == {kind for kind, model in MODELS.items() if model.scope is Scope.RANKS}


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
    steps = consolidated(replicas.objects, load_rules().enabled)
    told = [(finding.rule, finding.rank, finding.step) for step in steps for finding in step.found.findings]
    assert told == [("missing", 0, 1), ("replicas_diverge", 3, 2)]
    (finding,) = steps[2].found.findings
    assert finding.name == names[1]
    assert finding.reason == "collective output: rank 3 differs from ranks 0-2, by digest"
    (missing,) = steps[1].found.findings
    assert missing.reason == "step missing on rank 0, present on ranks 1-3"
    results = ingest.test_rules(replicas.store).rules
    assert {result.rule: result.findings for result in results if result.findings} == {
        "missing": 1,
        "replicas_diverge": 1,
    }
