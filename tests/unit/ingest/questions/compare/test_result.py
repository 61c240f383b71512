"""The answer as a table."""

import math
from dataclasses import replace
from typing import Any

from ingest.questions.compare import ComparedStep, ComparedTensor, Comparison, Verdict, compare
from ingest.questions.compare.result import shape_text
from workers.arrays.comparison import METRICS, Metrics
from workers.model import StepKey


def test_it_is_a_table_of_pandas(nan_log: str) -> None:
    table = compare(f"{nan_log}@0,2", f"{nan_log}@1,2", keep_equal=True).to_pandas()
    assert len(table) == 243
    assert table.groupby("verdict").size().to_dict() == {"different": 113, "equal": 130}
    assert table["max_abs"].dtype == float


def tensor(verdict: Verdict, **metrics: float) -> ComparedTensor:
    """Return a tensor of step 0 with this verdict."""
    figures: dict[str, Any] = dict.fromkeys(METRICS, 0.0) | metrics
    key = StepKey(0, 0)
    shape = (2, 3)
    return ComparedTensor(
        key,
        key,
        0,
        "a",
        "a",
        "",
        "Add",
        "output",
        "f",
        "f",
        shape,
        shape,
        verdict,
        metrics=Metrics(**figures),
    )


def test_the_worst_come_first() -> None:
    ordered = [
        tensor(Verdict.SHAPE),
        tensor(Verdict.DIFFERENT, nan_mismatch=1),
        tensor(Verdict.DIFFERENT, relative_euclidean=math.nan),
        tensor(Verdict.DIFFERENT, relative_euclidean=2.0),
        tensor(Verdict.DIFFERENT, relative_euclidean=1.0),
        tensor(Verdict.CLOSE, relative_euclidean=9.0),
        tensor(Verdict.EQUAL),
    ]
    assert (
        Comparison("a", "b", (), tuple(ordered[::-1]), None).worst(5)
        == [
            ordered[0],
            ordered[2],  # as bad as the one before it
            ordered[1],
            *ordered[3:5],
        ]
    )


def test_what_only_one_side_has_counts_unless_it_is_not_to_matter() -> None:
    step = ComparedStep(StepKey(0, 0), StepKey(0, 0), {Verdict.EQUAL: 3, Verdict.ONLY_B: 1})
    strict = Comparison("a", "b", (step,), (), None)
    assert (strict.is_within, strict.verdict) == (False, "different")
    assert replace(strict, unmatched_matter=False).verdict == "equal"
    missing = Comparison("a", "b", (replace(step, counts={Verdict.CLOSE: 1}),), (), None, incomplete=1)
    assert missing.verdict == "different"
    assert replace(missing, unmatched_matter=False).verdict == "close"


def test_figures_that_are_not_numbers_are_null() -> None:
    row = tensor(Verdict.DIFFERENT, max_abs=math.inf, cosine=math.nan).to_dict()
    assert (row["max_abs"], row["cosine"], row["rmse"]) == (None, None, 0.0)
    assert row["shape_a"] == [2, 3]


def test_shapes_are_written_shortly() -> None:
    assert [shape_text(shape) for shape in ((2, 3), (7,), (), None)] == ["2x3", "7", "()", ""]
