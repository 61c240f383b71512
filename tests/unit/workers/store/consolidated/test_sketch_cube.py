"""The columns of sketches in the cubes: their names, and which tensors lack them."""

import numpy as np
import pytest

from bench.steps import make_tables
from workers.arrays.statistics import FIELDS, summarise
from workers.model import StepKey
from workers.store.consolidated.cubes import SKETCHES, sketch_place, sketched_rows
from workers.store.sketches import histograms
from workers.store.sketches.sketch_names import is_sketch_column
from workers.store.tables import Tables

#: 3 elements in (2, 4], -1 in (0.5, 1].
VALUES = np.array([3, 3.5, 4, -1, 0], "<f4")
BINS = [[1, 3, 0], [-1, 0, 1]]


@pytest.fixture
def index() -> Tables:
    """Tables of tensors that all hold `VALUES`."""
    made = make_tables(StepKey(0, 0), ["a", "b"], (), 0)
    statistics = summarise(VALUES)
    made.statistics[:] = [getattr(statistics, name) for name in FIELDS]
    return made


def entries_of(rows: dict[int, list[list[int]]]) -> np.ndarray:
    return histograms.TABLE.gathered(list(rows), {i: np.array(bins) for i, bins in enumerate(rows.values())})


def test_columns_are_what_conditions_may_name() -> None:
    for place, name in enumerate(SKETCHES):
        inside = name.replace(".", "_")
        assert is_sketch_column(inside)
        assert sketch_place(inside) == place


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("p50_0", "p50"),
        ("underflow_e4m3", "underflow_float8_e4m3fn"),
        ("overflow_fp16", "overflow_float16"),
        ("abs_p99_90", "abs_p99.9"),
        ("p98", None),
        ("underflow_e5m7", None),
        ("dead_channels", None),
        ("max", None),
    ],
)
def test_names_may_be_spelled_otherwise(name: str, column: str | None) -> None:
    assert sketch_place(name) == (None if column is None else SKETCHES.index(column))


def test_bounds_follow_from_the_bins(index: Tables) -> None:
    counted = histograms.counted_rows(index)
    sketched = sketched_rows(index, entries_of(dict.fromkeys(counted, BINS)))
    assert sketched.rows.tolist() == counted
    assert sketched.without == 0
    for name, bounds in {"p50": [2, 4], "p1": [-1, 0], "underflow_float16": [0, 0]}.items():
        assert sketched.values[0, SKETCHES.index(name)].tolist() == bounds


def test_a_histogram_that_contradicts_the_statistics_counts_as_missing(index: Tables) -> None:
    counted = histograms.counted_rows(index)
    wrong = [[[1, 2, 0], [-1, 0, 1]], [[999, 3, 1]], [[1, 3, -1]]]
    for bins in wrong:
        rows = dict.fromkeys(counted, BINS) | {counted[0]: bins}
        sketched = sketched_rows(index, entries_of(rows))
        assert sketched.without == 1
        assert sketched.rows.tolist() == counted[1:]
    assert sketched_rows(index, histograms.TABLE.empty()).without == len(counted)
