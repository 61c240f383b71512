"""Numbers of bytes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.units import human_bytes, parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("10TiB", 10 * 2**40), ("1.5 GB", 1_500_000_000), (" 4096 ", 4096), ("0", 0)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0.1", "-1GB", "10 GB and more", "GB", "1 parsec", "1e400YB", "٣GB"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of bytes"):
        parse_size(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * 2**29, "1.5 GiB"), (2**50, "1024.0 TiB")],
)
def test_sizes_are_written_with_a_binary_unit(nbytes: int, text: str) -> None:
    assert human_bytes(nbytes) == text


@given(st.integers(0, 2**50))
def test_what_is_written_is_read_as_about_the_same(nbytes: int) -> None:
    assert parse_size(human_bytes(nbytes)) == pytest.approx(nbytes, rel=0.06, abs=1)
