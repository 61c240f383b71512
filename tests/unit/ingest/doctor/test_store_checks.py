"""Checks of a store; `test_checks.py` has the states that they tell apart."""

import pytest

from ingest.doctor.remote import check_clock


@pytest.mark.parametrize(
    ("host", "detail"), [(1001.0, "1 s ahead of the store's"), (999.0, "1 s behind the store's")]
)
def test_a_clock_is_compared_with_that_of_the_store(host: float, detail: str) -> None:
    assert check_clock(1000.0, host).detail == detail
