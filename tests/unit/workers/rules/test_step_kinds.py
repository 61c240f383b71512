"""Kinds of rules over one step: each by its definition."""

import math

import ml_dtypes
import numpy as np
import pytest

from tests.rule_sets import evaluated, numbers, rows, tables_of
from workers.arrays.dtypes import LIMITS
from workers.arrays.statistics import FIELDS
from workers.rules.schema import MODELS
from workers.rules.step_kinds import EVALUATORS
from workers.rules.values import Scope
from workers.store.tables import LABELS


def test_every_kind_over_one_step_has_an_evaluator() -> None:
    assert set(EVALUATORS) == {kind for kind, model in MODELS.items() if model.scope is Scope.STEP}


def test_not_finite_counts_what_it_is_asked_for() -> None:
    made = tables_of(
        numbers(1, 2), numbers(np.nan, 1), numbers(np.inf, -np.inf), numbers(np.nan, np.nan, -np.inf)
    )
    assert rows(made, kind="not_finite") == [1, 2, 3]
    assert rows(made, kind="not_finite", of=["nan"]) == [1, 3]
    assert rows(made, kind="not_finite", of=["neg_inf"]) == [2, 3]
    assert rows(made, kind="not_finite", count_gt=2) == [3]
    assert evaluated(made, kind="not_finite").findings[2].reason == "2 NaN, 1 -Inf of 3 elements"


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_headroom_is_the_share_of_the_largest_number_of_the_type(dtype: str) -> None:
    limit = LIMITS[dtype]
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    half, most = (np.array([1, -x], np.float64).astype(kind) for x in (limit / 2, limit))
    made = tables_of(half, most)
    assert rows(made, kind="headroom", share_gt=0.5) == [1]
    assert rows(made, kind="headroom", share_ge=0.5) == [0, 1]
    assert rows(made, kind="headroom", share_ge=1) == [1]


def test_headroom_of_float16_ends_at_65504() -> None:
    assert LIMITS["float16"] == 65504
    assert LIMITS["float8_e4m3fn"] == 448
    assert LIMITS["float8_e5m2"] == 57344


def test_too_large_and_too_small_compare_what_they_are_given() -> None:
    made = tables_of(numbers(-100, 1), numbers(3, 4), numbers(1e-9, -1e-9))
    assert rows(made, kind="too_large", abs_max_gt=50) == [0]
    assert rows(made, kind="too_large", max_gt=3.5) == [1]
    assert rows(made, kind="too_large", max_gt=3.5, rms_gt=50) == [0, 1]
    assert rows(made, kind="too_large", l2_norm_gt=4.99, mean_gt=1e9) == [0, 1]
    assert rows(made, kind="too_small", rms_lt=1e-7) == [2]
    assert rows(made, kind="too_small", mean_lt=-1) == [0]


def test_the_largest_magnitude_is_no_less_than_what_is_known_of_it() -> None:
    """A table of statistics may have the maximum alone."""
    made = tables_of(numbers(-100, 1), numbers(-1, 6e4, dtype="f2"), numbers(1e-9, -1e-9))
    made.statistics[:, FIELDS.index("min")] = np.nan
    assert rows(made, kind="too_large", abs_max_gt=50) == [1]
    assert rows(made, kind="headroom", share_gt=0.5) == [1]
    assert rows(made, kind="too_small", abs_max_lt=10) == []


def test_zeros_by_share_of_tensors_that_are_large_enough() -> None:
    made = tables_of(np.zeros(3), np.array([0, 0, 0, 1.0]), np.ones(4), np.zeros(100))
    assert rows(made, kind="zeros") == [0, 3]
    assert rows(made, kind="zeros", share_ge=0.75) == [0, 1, 3]
    assert rows(made, kind="zeros", elements_ge=16) == [3]


def test_range_on_either_side_and_by_spread() -> None:
    made = tables_of(numbers(-2, 0), numbers(0, 2), numbers(0.5, 0.5))
    assert rows(made, kind="range", min_ge=-1) == [0]
    assert rows(made, kind="range", max_le=1) == [1]
    assert rows(made, kind="range", min_ge=-1, max_le=1) == [0, 1]
    assert rows(made, kind="range", spread_lt=0.1) == [2]


def test_a_file_is_no_tensor() -> None:
    assert rows(tables_of(numbers(np.nan), kind="file"), kind="not_finite") == []


def test_an_overflow_record_and_a_disagreement_are_found_by_their_rows() -> None:
    made = tables_of(numbers(1), numbers(2))
    made.labels[0, LABELS.index("kind")] = "overflow"
    made.labels[0, LABELS.index("record")] = '{"failed": [{"op_type": "Mul", "op_name": "x"}], "record": {}}'
    made.labels[1, LABELS.index("problem")] = "s.csv disagrees: max: 3 is reported, 2 computed"
    (record,) = evaluated(made, kind="overflow").findings
    assert record.reason == "the hardware recorded an overflow in Mul.x"
    assert math.isnan(record.value)
    assert rows(made, kind="disagreement") == [1]
    made.labels[0, LABELS.index("record")] = "no JSON"
    assert rows(made, kind="overflow") == [0]


def test_nothing_is_said_of_what_is_not_known() -> None:
    made = tables_of(numbers(np.nan))
    made.statistics[:] = np.nan
    for rule in (
        {"kind": "not_finite"},
        {"kind": "headroom", "share_ge": 0},
        {"kind": "too_small", "max_lt": 1e30},
        {"kind": "zeros", "share_ge": 0},
        {"kind": "range", "min_ge": 0},
    ):
        assert rows(made, **rule) == []
