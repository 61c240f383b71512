"""Ranks by steps, and their aggregation."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.questions.heatmap import heatmap
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, Matrix, matrix, parse_range, rank_values
from tests.replicas import gappy_replicas
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


def test_a_damaged_step_is_a_damaged_cell(nan_log: Path, tmp_path: Path) -> None:
    shutil.copytree(nan_log, tmp_path / "run.zarr")
    commit = tmp_path / "run.zarr/rank_1/step_3/zarr.json"
    commit.write_bytes(commit.read_bytes()[:-9])
    store = ingest.open_store(tmp_path / "run.zarr")
    for stat in ("non_finite", "max"):
        states = matrix(store, stat).state.tolist()
        assert states == [[KNOWN, KNOWN, KNOWN], [KNOWN, KNOWN, DAMAGED]]
    assert matrix(store, cells=(1, 2)).state.tolist() == [[KNOWN, DAMAGED]]


def test_ten_million_cells_become_as_many_as_fit() -> None:
    ranks, steps = 10_000, 1_000
    values = np.zeros((ranks, steps))
    values[7_777, 333] = 3
    binned = Matrix(
        "many",
        tuple((rank, rank) for rank in range(ranks)),
        tuple((step, step) for step in range(steps)),
        values,
        np.ones(values.shape, np.int64),
        np.zeros(values.shape, np.int64),
        values > 0,
        is_count=True,
    ).binned(88, 240)
    assert binned.values.shape[0] <= 88
    assert binned.values.shape[1] <= 240
    assert binned.values.max() == 3
    assert binned.bad.sum() == 1


@pytest.mark.parametrize(("words", "chosen"), [("", [0, 2, 5]), ("2", [2]), ("1-9", [2, 5])])
def test_ranges_choose_from_what_there_is(words: str, chosen: list[int]) -> None:
    assert parse_range(words, [0, 2, 5], "steps") == chosen


@pytest.mark.parametrize("words", ["x", "3-", "-3", "1-2-3", "7", "²", "1-²", "٣", "9" * 5000])
def test_wrong_ranges_are_named(words: str) -> None:
    with pytest.raises(UsageError, match="steps"):
        parse_range(words, [0, 2, 5], "steps")


@pytest.mark.parametrize("pattern", [None, "*", "Adam.w.*"])
@pytest.mark.parametrize("is_consolidated", [False, True])
def test_they_are_the_values_of_the_heatmap(pattern: str | None, *, is_consolidated: bool) -> None:
    store = gappy_replicas().store
    if is_consolidated:
        ingest.consolidate(store.url)
    field = heatmap(store, pattern, "max")
    values = rank_values(store, pattern, "max")
    assert list(values) == field["step"].values.tolist() == [0, 1, 2, 3]
    for step, known in values.items():
        column = field.sel(step=step, rank=known.ranks)
        np.testing.assert_array_equal(known.values, column)
    assert [values[step].ranks.tolist() for step in (0, 1)] == [[0, 1], [0]]
