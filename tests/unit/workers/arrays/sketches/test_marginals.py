"""Sums along the axes of tensors of any shape and type, in any pieces, against numpy."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.arrays.dtypes import from_name
from workers.arrays.marginals import (
    Marginal,
    RunningMarginals,
    _plan,
    kept_axes,
    marginals_of,
    running_marginals,
)
from workers.arrays.statistics import RunningStatistics

SHAPES = ((300, 250), (7, 11, 13, 17), (64, 64, 3, 3), (2, 3000), (5000, 1, 2), (3, 70, 2, 40), (4, 9000))


def expected(values: np.ndarray[Any, Any], axis: int) -> Marginal:
    wide = np.where(np.isfinite(values), values, 0).astype(np.float64)
    others = tuple(other for other in range(values.ndim) if other != axis)
    norm = np.sqrt(np.square(wide).sum(axis=others))
    table = np.stack([wide.sum(axis=others), norm, np.abs(wide).max(axis=others)])
    return Marginal(*table.astype(np.float32))


def made(shape: tuple[int, ...], dtype: Any, *, finite: bool = True) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(math.prod(shape))
    values = rng.standard_normal(shape) * np.exp(rng.standard_normal(shape))
    if not finite:
        values.reshape(-1)[[5, 50, -1]] = np.nan, np.inf, -np.inf
    return values.astype(dtype)


RANKS = made((40, 20, 30), "f4")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_every_axis_is_summed_as_numpy_sums_it(shape: tuple[int, ...], dtype: str) -> None:
    values = made(shape, dtype)
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    summed = marginals_of(values, axes)
    assert sorted(summed) == axes
    for axis in axes:
        assert summed[axis].agrees_with(expected(values, axis))


@pytest.mark.parametrize("dtype", ["f2", ">f4", "f4", "f8", ml_dtypes.bfloat16])
@pytest.mark.parametrize("fortran_order", [False, True])
def test_they_are_made_in_the_pass_of_the_statistics(dtype: Any, *, fortran_order: bool) -> None:
    values = made((300, 400), dtype, finite=False)
    flat = values.reshape(-1, order="F" if fortran_order else "C")
    element = from_name(values.dtype.name, big_endian=values.dtype.byteorder == ">")
    summed = running_marginals(element, values.shape, fortran_order=fortran_order)
    running, alone = RunningStatistics(with_histogram=True, marginals=summed), RunningStatistics()
    for piece in np.split(flat, [1, 777, 50_000]):
        running.update(np.ascontiguousarray(piece))
        alone.update(np.ascontiguousarray(piece))
    np.testing.assert_equal(running.row(), alone.row())
    made_of = running.marginals().by_axis()
    lengths = values.shape[::-1] if fortran_order else values.shape
    kept = kept_axes(lengths, values.itemsize)
    assert made_of.keys() == {1 - axis if fortran_order else axis for axis in kept} != set()
    for axis, marginal in made_of.items():
        assert marginal.agrees_with(expected(values.astype("f8"), axis))


@given(cuts=st.lists(st.integers(0, 7 * 11 * 78), max_size=6), axes=st.sets(st.integers(0, 2), min_size=1))
def test_any_split_into_pieces_gives_the_same(cuts: list[int], axes: set[int]) -> None:
    values = made((7, 11, 78), "f4")
    chosen = tuple(sorted(axes))
    whole = marginals_of(values, chosen)
    pieces = running_marginals_of(values, chosen, cuts)
    assert all(whole[axis].agrees_with(pieces[axis]) for axis in chosen)


def running_marginals_of(
    values: np.ndarray[Any, Any], axes: tuple[int, ...], cuts: list[int]
) -> dict[int, Marginal]:
    running = RunningMarginals(_plan(values.shape, axes), values.itemsize)
    for piece in np.split(values.reshape(-1), sorted(cuts)):
        running.update(np.ascontiguousarray(piece), finite=True)
    return running.result().by_axis()


@given(cuts=st.lists(st.integers(1, 39), max_size=5, unique=True), axis=st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_any_split_over_ranks_adds_up_along_the_other_axes(cuts: list[int], axis: int) -> None:
    values = np.moveaxis(RANKS, 0, axis)
    others = [other for other in range(3) if other != axis]
    whole = marginals_of(values, others)
    shards = np.split(values, sorted(cuts), axis=axis)
    parts = [marginals_of(np.ascontiguousarray(shard), others) for shard in shards]
    for other in others:
        assert Marginal.added(part[other] for part in parts).agrees_with(whole[other])


def test_what_float32_does_not_have_is_neither_zero_nor_infinite() -> None:
    values = np.zeros((100, 100))
    values[3], values[5] = 1e-200, 1e200
    (marginal,) = marginals_of(values, [0]).values()
    assert marginal.abs_max[3] == 2.0**-149
    assert marginal.abs_max[5] == marginal.l2_norm[5] == np.finfo(np.float32).max
    assert np.count_nonzero(marginal.abs_max) == 2
    assert marginals_of(np.zeros((100, 100)), [0]) == {}
