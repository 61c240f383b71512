"""The answer as a table."""

import math
from dataclasses import replace

from ingest.questions.compare import ComparedStep, Comparison, Verdict, compare
from tests.compared_tensors import compared
from workers.model import StepKey


def test_it_is_a_table_of_pandas(nan_log: str) -> None:
    table = compare(f"{nan_log}@0,2", f"{nan_log}@1,2", keep_equal=True).to_pandas()
    assert len(table) == 243
    assert table.groupby("verdict").size().to_dict() == {"different": 113, "equal": 130}
    assert table["max_abs"].dtype == float


def test_the_worst_come_first() -> None:
    ordered = [
        compared(Verdict.SHAPE),
        compared(Verdict.DIFFERENT, nan_mismatch=1),
        compared(Verdict.DIFFERENT, relative_euclidean=math.nan),
        compared(Verdict.DIFFERENT, relative_euclidean=2.0),
        compared(Verdict.DIFFERENT, relative_euclidean=1.0),
        compared(Verdict.CLOSE, relative_euclidean=9.0),
        compared(Verdict.EQUAL),
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
