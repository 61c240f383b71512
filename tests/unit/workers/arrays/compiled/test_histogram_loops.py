"""The loops as Python runs them: `test_histogram_kernels` compares their object code with numpy."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.plain_loops import plain
from workers.arrays.compiled import histogram_loops as loops


def sparse(tables: Any, pos_inf: int = 0, neg_inf: int = 0) -> list[list[int]]:
    out = np.full((loops.LAST + 2, 3), -1, np.int64)
    totals = np.zeros(2 * loops.BINS, np.int64)
    plain(loops.add_tables)(tables, totals)
    plain(loops.write_sparse)(totals, pos_inf, neg_inf, out)
    rows: list[list[int]] = out[: out[loops.LAST + 1, 0]].tolist()
    return rows


def tables() -> Any:
    return np.zeros((loops.TABLES, loops.WIDTH), np.int64)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 20])
def test_every_element_is_counted_once_whatever_is_left_over(count: int) -> None:
    made = tables()
    with np.errstate(over="ignore"):
        plain(loops.count_float32)(np.full(count, 1.5, "f4").view("i4"), made)
    assert made.sum() == count
    assert sparse(made) == [[0, count, 0]]


def test_zeros_and_nan_are_not_kept_and_infinities_are_taken_out() -> None:
    values = np.array([0, -0.0, np.nan, -np.nan, np.inf, -np.inf, -np.inf, 2, -1], "f4")
    made = tables()
    with np.errstate(over="ignore"):
        plain(loops.count_float32)(values.view("i4"), made)
    assert sparse(made, 1, 2) == [[-1, 0, 1], [0, 1, 0]]
    assert sparse(tables()) == []


def test_float64_uses_the_bin_of_its_upper_bits() -> None:
    bin_of = np.arange(4096, dtype=np.uint16) % (2 * loops.BINS)
    made = tables()
    bits = np.array([1.5, 3.0, -3.0], "f8").view("i8")
    plain(loops.count_float64)(bits, bin_of, made)
    places = Counter(int(bin_of[((bit - 1) >> 52) & 4095]) for bit in bits.tolist())
    assert {place: int(made[:, place].sum()) for place in places} == places
    assert made.sum() == len(bits)
