"""Numbers of bytes as people write them."""

import pytest

from ingest.units import parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("10TiB", 10 * 2**40), ("1.5 GB", 1_500_000_000), (" 4096 ", 4096), ("0", 0)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0.1", "-1GB", "10 GB and more", "GB", "1 parsec", "1e400YB", "٣GB"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of bytes"):
        parse_size(text)
