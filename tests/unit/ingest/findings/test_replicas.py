"""Rules that compare ranks."""

import pytest

import ingest
from ingest.findings.series import SeriesRules
from ingest.reader.catalog import Catalog
from tests.replicas import Replicas
from tests.rule_sets import consolidated, only
from workers.rules.schema import load_rules

NAMES = [f"AllReduce.net_AllReduce-op{i}.output.0" for i in range(4)]


def replicas_with_faults(lacking: str = "") -> Replicas:
    """Return four ranks of three steps. Rank 0 lacks step 1. In step 2, a tensor of rank 3 is off.

    Args:
        lacking: a tensor that rank 3 does not have in step 2.
    """
    replicas = Replicas()
    for step in range(3):
        for rank in range(4):
            contents = {name: 10 * step + number for number, name in enumerate(NAMES)}
            if (step, rank) == (2, 3):
                contents[NAMES[1]] = 99
                contents.pop(lacking, None)
            if (step, rank) != (1, 0):
                replicas.put(rank, step, contents)
    return replicas


def test_replicas_that_differ_and_what_a_rank_lacks_are_found() -> None:
    replicas = replicas_with_faults()
    steps = consolidated(replicas.objects, load_rules().enabled)
    told = [(finding.rule, finding.rank, finding.step) for step in steps for finding in step.result.findings]
    assert told == [("missing", 0, 1), ("replicas_diverge", 3, 2)]
    (finding,) = steps[2].result.findings
    assert finding.name == NAMES[1]
    assert finding.reason == "collective output: rank 3 differs from ranks 0-2, by digest"
    (missing,) = steps[1].result.findings
    assert missing.reason == "step missing on rank 0, present on ranks 1-3"
    results = ingest.test_rules(replicas.store).rules
    assert {result.rule: result.findings for result in results if result.findings} == {
        "missing": 1,
        "replicas_diverge": 1,
    }


def test_a_condition_chooses_tensors_and_operators_that_fulfil_it_on_any_rank() -> None:
    replicas = replicas_with_faults(lacking=NAMES[3])

    def told(kind: str, where: str) -> list[str]:
        (result,) = ingest.test_rules(replicas.store, only(kind=kind, where=where)).rules
        assert not result.failed
        return [finding.name for finding in result.first]

    assert told("divergence", "op_type == 'AllReduce' and step == 2") == [NAMES[1]]
    assert told("divergence", "op_name == 'net_AllReduce-op0'") == []
    assert told("missing", "io == 'output'") == ["AllReduce.net_AllReduce-op3"]
    assert told("missing", "slot > 0") == []


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({}, ["", "AllReduce.net_AllReduce-op3"]),
        ({"op_type": "AllReduce", "io": "output"}, ["AllReduce.net_AllReduce-op3"]),
        ({"include": "*op3.output.0"}, ["AllReduce.net_AllReduce-op3"]),
        ({"include": "AllReduce.net_AllReduce-op3"}, ["AllReduce.net_AllReduce-op3"]),
        ({"exclude": "AllReduce.net_AllReduce-op3"}, [""]),
        ({"exclude": "*op3.output.0"}, [""]),
        ({"exclude_op_type": "All*"}, [""]),
        ({"op_type": "MatMul"}, []),
        ({"io": "input"}, []),
        ({"graph": "another"}, []),
    ],
)
def test_what_is_missing_is_chosen_like_any_tensor(selector: dict[str, str], names: list[str]) -> None:
    replicas = replicas_with_faults(lacking=NAMES[3])
    (result,) = ingest.test_rules(replicas.store, only(kind="missing", **selector)).rules
    assert [finding.name for finding in result.first] == names


def test_replicas_are_compared_though_a_step_before_is_gone() -> None:
    replicas = replicas_with_faults()
    series = SeriesRules(only(kind="divergence"))
    gone = {0: "known", 1: "known", -1: "gone"}
    (finding,) = series.evaluate(Catalog(replicas.objects), 2, gone, "now").result.findings
    assert finding.name == NAMES[1]


def test_ranks_that_cannot_be_compared_are_named_also_in_the_first_step() -> None:
    replicas = Replicas()
    replicas.put(0, 0, {NAMES[0]: 1})
    replicas.put(1, 0, {NAMES[0]: 1}, status="partial")
    series = SeriesRules(only(kind="divergence"))

    def not_evaluated(step: int) -> tuple[str, ...]:
        return series.evaluate(Catalog(replicas.objects), step, {}, "now").not_evaluated

    assert not_evaluated(0) == ("rank 1 step 0: partial",)
    replicas.objects.put("rank_1/step_0/zarr.json", b"{}")
    (reason,) = not_evaluated(0)
    assert reason.startswith("rank 1 step 0: damaged: ")
    assert not_evaluated(7) == ()  # the step is gone
