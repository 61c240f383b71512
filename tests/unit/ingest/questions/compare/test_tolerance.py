"""Limits that follow from types, lengths of sums and what came before."""

import math

import pytest

from ingest.questions.compare.tolerance import (
    DRIFT,
    GROWTH,
    Judgement,
    Measured,
    ToleranceWalk,
    longest_sum,
    relative_difference,
    rounding,
)
from workers.arrays.comparison import Metrics, no_difference

FLOAT32 = ("float32", "float32")


def differing(distance: float, *, rmse: float = 1.0, nan: int = 0) -> Metrics:
    return Metrics(10, 5, nan, 0, False, 1.0, 1.0, 1.0, rmse, 1.0, distance, 1.0, 1.0, 1.0)


def measured(distance: float, length: int = 100, **fields: object) -> Measured:
    return Measured(FLOAT32, differing(distance), length, **fields)  # type: ignore[arg-type]


def test_rounding_grows_with_the_type_and_the_root_of_the_length() -> None:
    assert rounding(FLOAT32, 1) == pytest.approx(4 * 2 * 2**-24)
    assert rounding(FLOAT32, 10_000) == pytest.approx(4 * 101 * 2**-24)
    assert rounding(("bfloat16", "float32"), 1) == pytest.approx(4 * (2**-8 + 2**-24))
    assert rounding(("int64", "int64"), 100) == 0.0


def test_the_longest_sum_is_over_an_axis_or_over_all_but_the_last() -> None:
    assert longest_sum([(2, 8, 24), (72, 24), ()]) == 72
    assert longest_sum([(32, 100, 24)]) == 3200
    assert longest_sum([]) == 1


def test_a_difference_may_grow_from_operator_to_operator_but_not_jump() -> None:
    walk = ToleranceWalk()
    base = rounding(FLOAT32, 100)
    first = walk.judge(measured(base * 0.9))
    assert first.within
    second = walk.judge(measured(base * 10))
    assert second.within
    assert second.limit == pytest.approx(base + GROWTH * base * 0.9)
    jump = walk.judge(measured(0.01))
    assert not jump.within
    assert jump.times == pytest.approx(0.01 / jump.limit)
    assert "times the limit" in jump.reason
    assert not jump.is_explained_by(base)
    assert jump.is_explained_by(0.01)
    assert walk.judge(measured(base)).limit < 0.001  # what is wrong explains nothing that comes later


def test_the_inputs_of_an_operator_count_instead_of_all_that_came_before() -> None:
    walk = ToleranceWalk()
    walk.judge(measured(5e-6))
    assert not walk.judge(measured(5e-5, inputs=(0.0,))).within
    assert walk.judge(measured(5e-5, inputs=(5e-6,))).within


def test_the_next_step_begins_with_what_the_last_one_ended_with() -> None:
    walk = ToleranceWalk()
    for distance in (2e-6, 3e-5):
        assert walk.judge(measured(distance)).within
    assert not walk.judge(measured(2e-4)).within  # more than the fixed limit of float32
    walk.begin_step()
    assert walk.judge(measured(2e-4)).within
    assert not walk.judge(measured(3e-5 * DRIFT * 2)).within


def test_what_is_computed_from_a_narrow_type_is_no_better() -> None:
    walk = ToleranceWalk()
    assert walk.judge(Measured(("bfloat16", "bfloat16"), differing(5e-3), 10)).within
    assert walk.judge(measured(5e-3, 10)).within


def test_gradients_that_are_zero_in_theory_may_differ() -> None:
    noise = Measured(FLOAT32, differing(1.5, rmse=1e-9), 100, is_gradient=True, usual=1e-3)
    assert ToleranceWalk().judge(noise).reason == "rounding of what is zero in theory"
    real = Measured(FLOAT32, differing(1.5, rmse=1e-4), 100, is_gradient=True, usual=1e-3)
    assert not ToleranceWalk().judge(real).within


def test_integers_must_be_equal_and_nan_in_the_same_places() -> None:
    integers = Measured(("int64", "int64"), differing(1e-9), 100)
    judged = ToleranceWalk().judge(integers)
    assert (judged.within, judged.reason) == (False, "5 of 10 elements differ")
    odd = ToleranceWalk().judge(Measured(FLOAT32, differing(0.0, nan=2), 100))
    assert (odd.within, odd.reason) == (False, "2 NaN or Inf in one of the two")
    assert relative_difference(differing(math.nan)) == math.inf
    assert relative_difference(no_difference(3)) == 0.0
    assert ToleranceWalk().judge(Measured(FLOAT32, no_difference(3), 1)) == Judgement(
        rounding(FLOAT32, 1), 0.0, within=True, own=rounding(FLOAT32, 1)
    )
