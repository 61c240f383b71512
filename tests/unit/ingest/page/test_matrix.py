"""Ranks by steps, and their aggregation."""

import numpy as np
import pytest

from ingest.page.matrix import DAMAGED, KNOWN, MISSING, Matrix, matrix_of, parse_range
from ingest.page.moment import Moment
from workers.errors import UsageError


def made(values: list[list[float]], state: list[list[int]]) -> Matrix:
    rows, columns = np.shape(values)
    return Matrix(
        "made",
        tuple((rank, rank) for rank in range(rows)),
        tuple((step, step) for step in range(columns)),
        np.array(values, float),
        np.array(state),
        (np.array(state) == MISSING).astype(np.int64),
        np.array(values, float) > 5,
        is_count=True,
    )


def test_counts_of_a_run_come_from_its_commits(moment: Moment) -> None:
    matrix = matrix_of(moment, "non_finite", "*", [0, 1], [1, 2, 3])
    assert matrix.values.tolist() == [[0, 0, 0], [0, 7, 7]]
    assert (matrix.state == KNOWN).all()
    assert matrix.bad.tolist() == [[False] * 3, [False, True, True]]


def test_statistics_come_from_the_tensors(moment: Moment) -> None:
    matrix = matrix_of(moment, "nan", "Log.*output*", [1], [2, 3])
    assert matrix.values.tolist() == [[2, 2]]


def test_cells_together_are_as_bad_as_the_worst_of_them() -> None:
    nan = np.nan
    matrix = made([[0, nan, 1], [9, nan, nan], [0, 0, nan]], [[1, 0, 1], [1, 0, DAMAGED], [1, 1, 0]])
    binned = matrix.binned(2, 2)
    assert binned.ranks == ((0, 1), (2, 2))
    assert binned.steps == ((0, 1), (2, 2))
    np.testing.assert_array_equal(binned.values, [[9, 1], [0, nan]])
    assert binned.state.tolist() == [[KNOWN, DAMAGED], [KNOWN, MISSING]]
    assert binned.gaps.tolist() == [[2, 0], [0, 1]]
    assert binned.bad.tolist() == [[True, False], [False, False]]


def test_ten_million_cells_become_as_many_as_fit() -> None:
    ranks, steps = 10_000, 1_000
    values = np.zeros((ranks, steps))
    values[7_777, 333] = 3
    matrix = Matrix(
        "many",
        tuple((rank, rank) for rank in range(ranks)),
        tuple((step, step) for step in range(steps)),
        values,
        np.ones(values.shape, np.int64),
        np.zeros(values.shape, np.int64),
        values > 0,
        is_count=True,
    ).binned(88, 240)
    assert matrix.values.shape[0] <= 88
    assert matrix.values.shape[1] <= 240
    assert matrix.values.max() == 3
    assert matrix.bad.sum() == 1


@pytest.mark.parametrize(("words", "chosen"), [("", [0, 2, 5]), ("2", [2]), ("1-9", [2, 5])])
def test_ranges_choose_from_what_there_is(words: str, chosen: list[int]) -> None:
    assert parse_range(words, [0, 2, 5], "steps") == chosen


@pytest.mark.parametrize("words", ["x", "3-", "-3", "1-2-3", "7", "²", "1-²", "٣", "9" * 5000])
def test_wrong_ranges_are_named(words: str) -> None:
    with pytest.raises(UsageError, match="steps"):
        parse_range(words, [0, 2, 5], "steps")
