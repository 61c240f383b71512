"""How NaN and Inf are presented."""

import math

import numpy as np
import pytest

from ingest.cli.non_finite import marked, whole_count


@pytest.mark.parametrize(
    ("statistic", "marks"), [("max", [False, True, False]), ("nan_count", [False, False, False])]
)
def test_nan_and_inf_are_marked_unless_they_are_what_is_counted(statistic: str, marks: list[bool]) -> None:
    assert marked(statistic, np.array([0, 3, math.nan])).tolist() == marks


def test_an_unknown_count_is_none() -> None:
    assert [whole_count(2.0), whole_count(math.nan)] == [2, None]
