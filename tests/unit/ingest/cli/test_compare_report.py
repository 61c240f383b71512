"""What `compare` prints of a comparison."""

from dataclasses import replace

import pytest

from ingest.cli.compare_report import print_comparison, say_summary
from ingest.questions.compare import (
    ComparedInput,
    ComparedStep,
    ComparedTensor,
    Comparison,
    FirstDifference,
    Verdict,
)
from workers.model import StepKey

EQUAL = ComparedTensor(
    StepKey(0, 1),
    StepKey(0, 1),
    0,
    "Log.a",
    "Log.a",
    "0",
    "Log",
    "output",
    "f4",
    "f4",
    (2, 3),
    (2, 3),
    Verdict.EQUAL,
)
FAR = replace(
    EQUAL, number=1, name_a="Exp.b", name_b="Exp.c", dtype_b="f2", verdict=Verdict.DIFFERENT, reason="far"
)
ONLY = replace(EQUAL, number=2, name_b="", dtype_b="", shape_b=None, verdict=Verdict.ONLY_A)


def comparison(*tensors: ComparedTensor, unmatched_matter: bool = True) -> Comparison:
    counts = {verdict: sum(tensor.verdict == verdict for tensor in tensors) for verdict in Verdict}
    step = ComparedStep(EQUAL.key_a, EQUAL.key_b, counts)
    return Comparison("a", "b", (step,), tensors, None, unmatched_matter=unmatched_matter)


def tables(text: str) -> list[list[str]]:
    return [[" ".join(line.split()) for line in table.splitlines()] for table in text.split("\n\n")]


def test_tensors_that_are_not_equal_are_listed_the_worst_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(comparison(EQUAL, ONLY, FAR), top=10)
    counts, tensors = tables(capsys.readouterr().out)
    assert counts == ["rank step equal different only in A", "0 1 1 1 1"]
    assert tensors[1] == "0 1 different Exp.b | Exp.c f4 | f2 2x3 - - - - - far"
    assert tensors[2].startswith("0 1 only in A Log.a f4 2x3")
    assert len(tensors) == 1 + 2


def test_a_summary_names_the_first_difference_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    compared = replace(
        comparison(EQUAL, FAR, FAR),
        first=FirstDifference(
            replace(FAR, io="input"),
            (
                ComparedInput("Exp.b", Verdict.DIFFERENT, "far", value_a="0.055", value_b="0.05"),
                ComparedInput("Exp.w", Verdict.DIFFERENT, "apart", written_in_place=True),
                ComparedInput("Exp.x", Verdict.EQUAL),
            ),
        ),
        only_b=tuple(StepKey(0, step) for step in range(26)),
        notes=("a note",),
    )
    say_summary(compared, top=1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "missing: rank 0 step 0 is only in B"
    assert lines[24:] == [
        "missing: 2 more steps are only in B",
        "note: a note",
        "2 tensors are not equal, the worst 1 shown (--top N, --all, --html FILE)",
        (
            "first difference: step 1, rank 0: Exp.b: 0.055 instead of 0.05; "
            "1 of the other 2 inputs differs or could not be compared"
        ),
        "  also Exp.w: apart (written in place)",
        "verdict: different",
    ]


@pytest.mark.parametrize(
    ("tensors", "verdict"),
    [
        (
            (EQUAL, replace(EQUAL, verdict=Verdict.CLOSE), ONLY),
            "2 tensors that both sides have are within the limits",
        ),
        ((EQUAL, ONLY), "1 tensor that both sides have is equal"),
        ((EQUAL, FAR, ONLY), ""),
        ((ONLY,), ""),
    ],
)
def test_a_verdict_says_it_only_where_it_holds(
    tensors: tuple[ComparedTensor, ...], verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say_summary(comparison(*tensors), top=None)
    assert capsys.readouterr().err == f"verdict: different{verdict and '; the '}{verdict}\n"


def test_of_many_steps_those_with_differences_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    steps = tuple(
        ComparedStep(StepKey(0, step), StepKey(1, step), {Verdict.EQUAL: 1, Verdict.DIFFERENT: step // 29})
        for step in range(30)
    )
    print_comparison(replace(comparison(), steps=steps), top=10)
    ((heading, only, total),) = tables(capsys.readouterr().out)
    assert (heading, only, total) == ("rank step equal different", "0 | 1 29 1 1", "all 30 30 1")
