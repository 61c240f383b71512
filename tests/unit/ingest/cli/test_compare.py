"""`dump-ingest compare` as it is typed, and what it prints."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.steps import commit_tables, make_tables
from ingest.cli.compare_report import print_comparison, say_summary
from ingest.questions.compare.result import (
    ComparedInput,
    ComparedStep,
    ComparedTensor,
    Comparison,
    FirstDifference,
    Verdict,
)
from tests.cli import Answer
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store.opening import open_objects, resolve


def test_differences_are_listed_and_end_with_5(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    done = answer(
        "compare", f"{nan_store}@0,2", f"{nan_store}@1,2", "--top", 3, "--html", tmp_path / "o.html", code=5
    )
    counts, worst = done.stdout.split("\n\n")
    assert counts.split("\n")[1].split() == ["0", "|", "1", "2", "130", "113"]
    assert worst.split("\n")[1].split()[4:6] == ["different", "Log.Default_net-LogLoss_Log-op0.output.0"]
    assert len(worst.strip().split("\n")) == 4
    assert "first difference: step 2, rank 0: MatMul" in done.stderr
    assert "verdict: different" in done.stderr
    assert (tmp_path / "o.html").read_text().startswith("<!DOCTYPE html>")


def test_guesses_are_written_for_map(nan_store: Path, answer: Answer, tmp_path: Path) -> None:
    """Without any guess, too: a script need not look first."""
    path = tmp_path / "map.yml"
    answer("compare", f"{nan_store}@0,1", f"{nan_store}@0,1", "--suggest-map", path)
    answer("compare", f"{nan_store}@0,1", f"{nan_store}@0,1", "--map", path)
    missing = answer("compare", nan_store, nan_store, "--suggest-map", tmp_path / "no" / "map.yml", code=2)
    assert "--suggest-map takes the name of a file" in missing.stderr


def test_tree_of_a_dump_is_declared_as_for_ingest(tmp_path: Path, answer: Answer) -> None:
    for name, last in (("a", 2), ("b", 3)):
        (tmp_path / name / "r0" / "s1").mkdir(parents=True)
        np.save(tmp_path / name / "r0" / "s1" / "fc.npy", np.array([1, last], np.float32))
    sides = tmp_path / "a", tmp_path / "b"
    done = answer("compare", *sides, "--layout", "r{rank}/s{step}/{module}.npy", code=5)
    assert "Module.fc.fc.output.0" in done.stdout
    assert "no dump of a known layout" in answer("compare", *sides, code=2).stderr


def test_over_steps_the_tensors_that_differ_first_come_first(tmp_path: Path, answer: Answer) -> None:
    for name, changed in (("a.zarr", 0), ("b.zarr", 1)):
        objects = open_objects(resolve(str(tmp_path / name)))
        for step in range(3):
            made = make_tables(StepKey(0, 0), ["op0", "op1"])
            made.statistics[1, FIELDS.index("l2_norm")] = 4.0 - changed * step
            made.digest[1, 0] += changed * step
            commit_tables(objects, StepKey(0, step), made)
    sides = [tmp_path / "a.zarr@0", tmp_path / "b.zarr"]
    shown = answer("compare", *sides, "--over-steps", code=5)
    assert shown.stdout.splitlines()[1].split() == ["MatMul.op1.output.0", "step", "1", "0", "0.25", "0.5"]
    assert "1 of 2 tensors differ" in shown.stderr
    rows = answer("compare", *sides, "--over-steps", "--json", code=5).json
    assert [row["error"] for row in rows] == [0, 0, 0, 0, 0.25, 0.5]
    of_max = answer("compare", *sides, "--over-steps", "--stat", "max", "--json", code=5).json
    assert [row["error"] for row in of_max] != [row["error"] for row in rows]
    assert "Add --over-steps" in answer("compare", *sides, "--stat", "max", code=2).stderr
    assert "no tensor differs" in answer("compare", sides[0], sides[0], "--over-steps").stdout
    for words, problem in (
        ((tmp_path / "a.zarr@0,1", sides[1]), "about all steps"),
        ((*sides, "--op-type", "MatMul"), "by --name alone"),
        ((sides[0], tmp_path / "b.zarr@1"), "one rank"),
        ((*sides, "--html", tmp_path / "page.html"), "--html has no effect"),
        ((*sides, "--thresholds", tmp_path / "limits.yml"), "--thresholds has no effect"),
    ):
        assert problem in answer("compare", *words, "--over-steps", code=2).stderr


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
