"""What a comparison says of one pair of tensors, as a row of plain values."""

import math

from ingest.questions.compare import Verdict
from tests.compared_tensors import compared


def test_figures_that_are_not_numbers_are_null() -> None:
    row = compared(Verdict.DIFFERENT, max_abs=math.inf, cosine=math.nan).to_dict()
    assert (row["max_abs"], row["cosine"], row["rmse"]) == (None, None, 0.0)
    assert row["shape_a"] == [2, 3]
