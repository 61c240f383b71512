"""Reported statistics against computed ones: what rounding explains, and what it does not."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workers.arrays.statistics import COUNT_FIELDS, FIELDS, UNKNOWN, Statistics, summarise
from workers.dump.model import ReportedStatistics, TensorName
from workers.tasks.index import disagreements


def report(statistics: Statistics, digits: int = 6, **told: Any) -> ReportedStatistics:
    """Return what a table with these statistics says."""
    return ReportedStatistics("s.csv", TensorName(), "float32", (), statistics, digits=digits, **told)


def printed(computed: Statistics, digits: int = 6) -> Statistics:
    """Return statistics as a text of that many digits gives them back."""
    return Statistics(**{field: float(f"{getattr(computed, field):.{digits}g}") for field in FIELDS})


@given(
    hnp.arrays(
        st.sampled_from(["f2", "f4", "f8", "i4", "u1", "?"]),
        st.integers(0, 50),
    ),
    st.integers(1, 9),
)
def test_printing_makes_no_disagreement(
    values: np.ndarray[tuple[int], np.dtype[np.float64]], digits: int
) -> None:
    computed = summarise(values)
    assert disagreements(report(printed(computed, digits), digits), computed, "float32") == []


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in COUNT_FIELDS])
@pytest.mark.parametrize("factor", [1.0001, -1.0, 0.0])
def test_another_value_disagrees_and_both_are_told(field: str, factor: float) -> None:
    computed = summarise(np.array([1.0, 2.0, 4.0, -0.5], "f4"))
    wrong = replace(computed, **{field: getattr(computed, field) * factor})
    (difference,) = disagreements(report(wrong), computed, "float32")
    assert difference.startswith(f"{field}: ")
    assert f"{getattr(computed, field):.9g}" in difference


@pytest.mark.parametrize("field", COUNT_FIELDS)
def test_counts_must_be_equal(field: str) -> None:
    computed = summarise(np.array([1.0, 2.0, -4.0, 0, math.nan, math.inf], "f4"))
    wrong = replace(computed, **{field: getattr(computed, field) + 1})
    assert len(disagreements(report(wrong), computed, "float32")) == 1


def test_a_count_that_was_printed_short_may_be_rounded() -> None:
    computed = replace(UNKNOWN, count=1234567)
    assert disagreements(report(replace(UNKNOWN, count=1.23457e6)), computed, "float32") == []
    assert len(disagreements(report(replace(UNKNOWN, count=1234566)), computed, "float32")) == 1
    assert len(disagreements(report(replace(UNKNOWN, count=1.23456e6)), computed, "float32")) == 1


def test_what_either_does_not_know_is_not_compared() -> None:
    computed = summarise(np.array([1.0], "f4"))
    assert disagreements(report(UNKNOWN), computed, "float32") == []
    assert disagreements(report(computed), UNKNOWN, "float32") == []


def test_sums_in_narrow_types_may_be_off_by_their_rounding() -> None:
    computed = summarise(np.linspace(-1, 1.1, 1000, dtype="f4"))
    off = replace(computed, l2_norm=computed.l2_norm * 1.02, mean=computed.mean + 0.01, max=computed.max)
    assert disagreements(report(off), computed, "bfloat16") == []
    assert len(disagreements(report(off), computed, "float16")) == 2
    assert len(disagreements(report(off), computed, "float32")) == 2


def test_a_mean_near_zero_is_measured_by_its_terms() -> None:
    computed = summarise(np.array([1.0, -1.0, 1e-9], "f8"))
    assert disagreements(report(replace(UNKNOWN, mean=3e-8)), computed, "float32") == []
    assert len(disagreements(report(replace(UNKNOWN, mean=3e-3)), computed, "float32")) == 1


def test_decimals_are_a_precision_of_their_own() -> None:
    computed = summarise(np.array([1e-6, 3e-6, 123.456, 2.0], "f4"))
    rounded = Statistics(**{field: round(getattr(computed, field), 4) for field in FIELDS})
    assert disagreements(report(rounded, 17, decimals=4), computed, "float32") == []
    wrong = replace(rounded, min=0.0002)
    assert len(disagreements(report(wrong, 17, decimals=4), computed, "float32")) == 1


def test_least_counts_agree_with_larger_ones() -> None:
    computed = summarise(np.array([np.nan, np.nan, np.inf, 1.0], "f4"))
    some = replace(UNKNOWN, nan_count=1, pos_inf_count=1, neg_inf_count=0)
    assert disagreements(report(some, counts_are_least=True), computed, "float32") == []
    assert len(disagreements(report(some), computed, "float32")) == 1
    none = replace(some, nan_count=0)
    assert len(disagreements(report(none, counts_are_least=True), computed, "float32")) == 1


def test_std_of_a_sample_agrees_with_that_of_all_elements() -> None:
    values = np.array([1.0, 2.0, 4.0, -0.5], "f4")
    computed, sample = summarise(values), replace(UNKNOWN, std=float(values.std(ddof=1)))
    assert disagreements(report(sample, std_is_of_sample=True), computed, "float32") == []
    assert len(disagreements(report(sample), computed, "float32")) == 1
