"""Names of steps, small pickles and exact arithmetic."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.model import SourceFile, StepKey, bounded_ns, ceil_div


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


def test_keys_come_in_order_of_their_steps() -> None:
    keys = [StepKey(1, 2), StepKey(0, 10), StepKey(1, None), StepKey(0, 2)]
    ordered = sorted(keys, key=lambda key: key.order)
    assert ordered == [StepKey(1, None), StepKey(0, 2), StepKey(1, 2), StepKey(0, 10)]


@pytest.mark.parametrize(
    ("key", "path", "text"),
    [
        (StepKey(3, 8), "rank_3/step_8", "rank 3 step 8"),
        (StepKey(0, None), "rank_0/run", "rank 0 run files"),
    ],
)
def test_key_has_a_place_in_the_store_and_a_name(key: StepKey, path: str, text: str) -> None:
    assert (key.path, str(key)) == (path, text)


def test_pickle_of_a_file_has_its_values_and_no_names_of_fields() -> None:
    """A plan holds thousands of files."""
    file = SourceFile("rank_0/a.npy", 5, 17, writable=False)
    pickled = pickle.dumps(file)
    loaded = pickle.loads(pickled)  # noqa: S301 (our own)
    assert (loaded, loaded.writable) == (file, False)
    assert b"mtime_ns" not in pickled


def test_permission_to_write_is_no_part_of_what_a_file_is() -> None:
    """Taking it away does not change the content."""
    assert SourceFile("a", 1, 2, writable=True) == SourceFile("a", 1, 2, writable=False)
