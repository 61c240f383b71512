"""Names of steps, small pickles and exact arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.model import bounded_ns, ceil_div


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**15))
def test_quotient_is_rounded_up_exactly(dividend: int, divisor: int) -> None:
    """Also beyond 2**53, where floats are no longer exact."""
    quotient = ceil_div(dividend, divisor)
    assert (quotient - 1) * divisor < dividend <= quotient * divisor


@pytest.mark.parametrize(
    ("time_ns", "kept"),
    [(0, 0), (-1, -1), (10**19, 2**63 - 1), (-(10**19), -(2**63)), (2**63 - 1, 2**63 - 1)],
)
def test_times_fit_into_64_bits(time_ns: int, kept: int) -> None:
    assert bounded_ns(time_ns) == kept
