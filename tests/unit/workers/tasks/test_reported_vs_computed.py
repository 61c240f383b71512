"""Reported statistics against computed ones: what rounding explains, and what it does not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workers.arrays.statistics import COUNT_FIELDS, FIELDS, UNKNOWN, Statistics, summarise
from workers.tasks.reported_vs_computed import disagreements


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
    assert disagreements(printed(computed, digits), computed, digits, "float32") == []


@pytest.mark.parametrize("field", [field for field in FIELDS if field not in COUNT_FIELDS])
@pytest.mark.parametrize("factor", [1.0001, -1.0, 0.0])
def test_another_value_disagrees_and_both_are_told(field: str, factor: float) -> None:
    computed = summarise(np.array([1.0, 2.0, 4.0, -0.5], "f4"))
    wrong = replace(computed, **{field: getattr(computed, field) * factor})
    (difference,) = disagreements(wrong, computed, 6, "float32")
    assert difference.startswith(f"{field}: ")
    assert f"{getattr(computed, field):.9g}" in difference


@pytest.mark.parametrize("field", COUNT_FIELDS)
def test_counts_must_be_equal(field: str) -> None:
    computed = summarise(np.array([1.0, 2.0, -4.0, 0, math.nan, math.inf], "f4"))
    wrong = replace(computed, **{field: getattr(computed, field) + 1})
    assert len(disagreements(wrong, computed, 6, "float32")) == 1


def test_a_count_that_was_printed_short_may_be_rounded() -> None:
    computed = replace(UNKNOWN, count=1234567)
    assert disagreements(replace(UNKNOWN, count=1.23457e6), computed, 6, "float32") == []
    assert len(disagreements(replace(UNKNOWN, count=1234566), computed, 6, "float32")) == 1
    assert len(disagreements(replace(UNKNOWN, count=1.23456e6), computed, 6, "float32")) == 1


def test_what_either_does_not_know_is_not_compared() -> None:
    computed = summarise(np.array([1.0], "f4"))
    assert disagreements(UNKNOWN, computed, 6, "float32") == []
    assert disagreements(computed, UNKNOWN, 6, "float32") == []


def test_sums_in_narrow_types_may_be_off_by_their_rounding() -> None:
    computed = summarise(np.linspace(-1, 1.1, 1000, dtype="f4"))
    off = replace(computed, l2_norm=computed.l2_norm * 1.02, mean=computed.mean + 0.01, max=computed.max)
    assert disagreements(off, computed, 6, "bfloat16") == []
    assert len(disagreements(off, computed, 6, "float16")) == 2
    assert len(disagreements(off, computed, 6, "float32")) == 2


def test_a_mean_near_zero_is_measured_by_its_terms() -> None:
    computed = summarise(np.array([1.0, -1.0, 1e-9], "f8"))
    assert disagreements(replace(UNKNOWN, mean=3e-8), computed, 6, "float32") == []
    assert len(disagreements(replace(UNKNOWN, mean=3e-3), computed, 6, "float32")) == 1
