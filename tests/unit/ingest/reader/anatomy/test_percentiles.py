"""Percentiles are exact, whatever the pieces."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from ingest.reader.anatomy.percentiles import percentiles

Values = np.ndarray[Any, Any]


class Reads:
    """Yields values in pieces, and counts how often they were read."""

    def __init__(self, values: Values, piece: int) -> None:
        self.values, self.piece, self.passes = values, piece, 0

    def __call__(self) -> Iterable[Values]:
        self.passes += 1
        return (self.values[at : at + self.piece] for at in range(0, len(self.values), self.piece))


@pytest.mark.parametrize(("dtype", "passes"), [("f4", 2), ("f8", 4), ("i8", 4), ("u8", 4)])
@pytest.mark.parametrize("piece", [1, 64, 1000])
def test_a_pass_for_each_16_bits_finds_what_numpy_finds(dtype: str, passes: int, piece: int) -> None:
    values = (np.random.default_rng(1).normal(size=300) * 1e6).astype("i8").astype(dtype)
    read = Reads(values, piece)
    answer = percentiles(read, len(values), values.dtype, [0, 25, 50, 99.9, 100])
    assert answer == pytest.approx(
        {percent: float(np.percentile(values.astype("f8"), percent)) for percent in answer}, rel=1e-12
    )
    assert read.passes == passes


def test_nothing_has_no_percentiles_and_is_not_read() -> None:
    read = Reads(np.empty(0, "f4"), 1)
    assert percentiles(read, 0, np.dtype("f4"), [50]) == {}
    assert read.passes == 0


def test_no_percentiles_need_no_pass() -> None:
    read = Reads(np.ones(3, "f4"), 1)
    assert percentiles(read, 3, np.dtype("f4"), []) == {}
    assert read.passes == 0


def test_between_the_largest_numbers_nothing_overflows() -> None:
    most = np.finfo("f8").max
    values = np.array([-most, most])
    assert percentiles(Reads(values, 2), 2, values.dtype, [50, 100]) == {50: 0.0, 100: most}
