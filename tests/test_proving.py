"""A sample of the proving ground (docs/proving.md): where answers are true today, they stay true."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from proving import score
from proving.case import Cause, Result, Statement, Truth, Verdict
from proving.runner import Proving

#: On a machine that does much else, the runs of all cases take minutes.
pytestmark = pytest.mark.timeout(900)
#: Cases, and what is not as it should be of them: `alone`, `compared`. An improvement makes that shorter.
SAMPLE: dict[str, str] = {
    "cnn, otherwise: restart=3": "",
    "cnn": "",
    "lstm, statistics": "",
    "moe, experts=8, top=1": "",
    "lora, rank=1, optimizer=sgd, hooks, torch.save": "",
    "regression": "",
    "recommender, otherwise: sparse=True": "",
    "megatron, tp=2": "",
    "megatron, sp=2, late": "",
    "cnn, optimizer=adam: no zero_grad": "",
    "cnn: learning rate 0 on one group": "",
    "cnn, evaluate_every=2: eval mode not left": "",
    "cnn: NaN in a batch": "",
    "transformer: eps of one norm": "",
    "graph, optimizer=sgd: one bit of a parameter": "",
    "graph: division by a degree of zero": "",
    "moe: router in bfloat16": "alone",
    "megatron, tp=2: no reduction forward blocks.1.mlp.down": "",
    "ddp, functions": "",
    "gan, statistics": "",
    "vae": "",
    "dtensor tp: output left as partial sum": "alone",
    "lora: both factors begin at zero": "",
    "cnn: channels loaded in another order": "",
}


TRUTH = Truth("one bit", ("Parameter.fc.*",), (Cause.BIT,), (5, 6), (1,))
RIGHT = Statement("divergence", "", ("Parameter.fc.weight",), 6, (1,), Cause.BIT)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ([], Verdict.SILENT),
        ([RIGHT], Verdict.RIGHT),
        ([replace(RIGHT, cause="")], Verdict.OPEN),
        ([replace(RIGHT, admits=True)], Verdict.OPEN),
        ([replace(RIGHT, ranks=(0, 1))], Verdict.OPEN),
        ([replace(RIGHT, ranks=())], Verdict.OPEN),
        ([replace(RIGHT, cause="", question="compare")], Verdict.RIGHT),
        ([replace(RIGHT, cause=Cause.MISSING_REDUCTION)], Verdict.WRONG),
        ([replace(RIGHT, step=7)], Verdict.WRONG),
        ([replace(RIGHT, ranks=(0,))], Verdict.WRONG),
        ([replace(RIGHT, places=("Parameter.head.weight",))], Verdict.WRONG),
        ([RIGHT, replace(RIGHT, places=("head",), step=7, cause="")], Verdict.RIGHT),
        ([RIGHT, replace(RIGHT, places=("head",), step=7)], Verdict.WRONG),
        ([RIGHT, replace(RIGHT, step=4, cause="")], Verdict.WRONG),
    ],
)
def test_an_answer_is_right_if_place_step_rank_and_cause_are(said: list[Statement], verdict: Verdict) -> None:
    assert score.of_fault(TRUTH, said) is verdict


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stores of the runs are."""
    return tmp_path_factory.mktemp("proving")


@pytest.fixture(scope="module")
def results(torch_tools: None, stores: Path) -> Mapping[str, Result]:  # noqa: ARG001  (they must be there)
    with Proving(stores) as proving:
        cases = [case for case in proving.cases(seed=0) if case.name in SAMPLE]
        return {result.case.name: result for result in proving.results(cases)}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_what_answers_said_truly_they_still_say_truly(name: str, results: Mapping[str, Result]) -> None:
    result = results[name]
    failing = {asked for asked, is_good in _judged(result).items() if not is_good}
    assert failing <= {*SAMPLE[name].split()}, (result.truth, *result.statements)


@pytest.mark.slow
def test_an_agent_finds_what_the_commands_find(stores: Path, results: Mapping[str, Result]) -> None:
    """In every fifth of these cases; `python -m proving --agent` asks about all."""
    found = [result.case for result in results.values() if Verdict.RIGHT in result.verdicts.values()][::5]
    with Proving(stores, as_agent=True) as proving:
        for result in proving.results(found):
            verdicts = {*result.verdicts.values()}
            assert Verdict.RIGHT in verdicts, (result.case.name, result.verdicts)
            assert verdicts.isdisjoint((Verdict.WRONG, Verdict.BROKEN)), (result.case.name, result.verdicts)


def _judged(result: Result) -> dict[str, bool]:
    """Return whether the answers alone and compared reach the floor: right, or quiet if all is well."""
    good = (Verdict.RIGHT, Verdict.QUIET)
    hidden = (*good, Verdict.OPEN, Verdict.SILENT) if result.truth and result.truth.hidden else good
    return {"alone": result.alone in (*hidden, None), "compared": result.compared in (*good, None)}
