"""Histograms, marginals and channels: what they keep of the elements."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.api import open_store
from tests.stores import DumpLibrary, ingest_directly
from workers.arrays.compiled.kernel_loops import BINS, LOWEST_EXPONENT
from workers.arrays.digest import BLOCK_NBYTES, RunningBlockDigests, blocks_of, differing_runs
from workers.arrays.dtypes import NAMED, NumberFormat, format_named, from_name
from workers.arrays.histogram import Bounds, Histogram, HistogramTable, losses, power_below
from workers.arrays.marginals import (
    ABS_MAX,
    L2_NORM,
    Marginal,
    RunningMarginals,
    _plan,
    channels_of,
    kept_axes,
    marginals_of,
    relative_error,
    running_marginals,
)
from workers.arrays.statistics import RunningStatistics, Statistics

# Bounds and quantiles of histograms, against numpy.


FLOATS = st.floats(width=32)
VALUES = st.lists(FLOATS, min_size=1, max_size=60)
SHARES = (0.0, 0.001, 0.25, 0.5, 0.9, 0.999, 1.0)


def histogram_of(values: np.ndarray[Any, Any]) -> Histogram:
    running = RunningStatistics(with_histogram=True)
    running.update(values)
    return Histogram.of_rows(running.histogram_rows(), running.result())


@given(values=VALUES, bound=st.floats(0, 1e39), power=st.integers(-126, 127))
def test_counts_up_to_a_bound_are_those_of_numpy(values: list[float], bound: float, power: int) -> None:
    array = np.array(values, np.float32)
    magnitudes = np.abs(array[np.isfinite(array) & (array != 0)]).astype(np.float64)
    histogram = histogram_of(array)
    counted = histogram.at_most(bound)
    assert counted.low <= np.count_nonzero(magnitudes <= bound) <= counted.high
    exact = int(np.count_nonzero(magnitudes <= 2.0**power))
    assert histogram.at_most(2.0**power) == Bounds(exact, exact)


@given(values=VALUES, share=st.sampled_from(SHARES), magnitude=st.booleans())
def test_quantiles_of_numpy_lie_between_the_bounds(
    values: list[float], share: float, *, magnitude: bool
) -> None:
    array = np.array(values, np.float32)
    finite = array[np.isfinite(array)].astype(np.float64)
    finite = np.abs(finite) if magnitude else finite
    bounds = histogram_of(array).quantile(share, magnitude=magnitude)
    if not finite.size:
        assert math.isnan(bounds.low)
        return
    low, high = (float(np.quantile(finite, share, method=how)) for how in ("lower", "higher"))
    # Where numpy interpolates, it rounds.
    assert bounds.low <= low
    assert high <= bounds.high


def test_bounds_of_a_quantile_differ_by_a_factor_of_two() -> None:
    values = np.random.default_rng(0).standard_normal(10_001).astype(np.float32)
    histogram = histogram_of(values)
    for share in (0.01, 0.3, 0.9, 0.999):
        bounds = histogram.quantile(share)
        assert max(abs(bounds.low), abs(bounds.high)) <= 2 * min(abs(bounds.low), abs(bounds.high))
    assert histogram.quantile(0) == Bounds(float(values.min()), float(values.min()))
    assert histogram.quantile(1, magnitude=True).high == np.abs(values).max()


@pytest.mark.parametrize("rows", [[[200, 1, 0]], [[-128, 1, 0]], [[0, -1, 2]], [[0, 5, 0]]])
def test_an_impossible_histogram_is_refused(rows: list[list[int]]) -> None:
    statistics = Statistics(1, 0, 0, 0, 0, 0, 1, 1.0, 1.0, 1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"impossible bin|other elements"):
        Histogram.of_rows(np.array(rows, np.int64), statistics)


# Histograms of tensors that arrive in blocks, of every type.


TYPES: tuple[Any, ...] = (
    *("f4", ">f4", "f8", "f2", ">f2", "i1", "u1", "i2", "u4", "i8", "?"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4),
)


def counted(values: np.ndarray[Any, Any]) -> dict[int, tuple[int, int]]:
    """Return by exponent the positive and negative elements that lie in (2**e, 2**(e+1)]."""
    with np.errstate(invalid="ignore"):  # NaN may be signalling
        wide = values.astype(np.float64)
    wide = wide[np.isfinite(wide) & (wide != 0)]
    mantissa, exponent = np.frexp(np.abs(wide))
    exponent = np.clip(exponent - 1 - (mantissa == 0.5), -127, 127)
    return {
        int(e): (int(((exponent == e) & (wide > 0)).sum()), int(((exponent == e) & (wide < 0)).sum()))
        for e in np.unique(exponent)
    }


def made(dtype: Any, size: int = 70_003) -> np.ndarray[Any, Any]:
    """Return numbers of all sizes, and what is not a number."""
    rng = np.random.default_rng(1)
    wide = rng.standard_normal(size) * np.exp(4 * rng.standard_normal(size))
    wide[::101], wide[::103], wide[::107], wide[::109] = 0, np.nan, np.inf, -np.inf
    dtype = np.dtype(dtype)
    if dtype.kind in "iub" or "int" in dtype.name:
        wide = np.clip(np.nan_to_num(wide), -8, 7) if dtype.name == "int4" else np.nan_to_num(wide) % 100
    with np.errstate(over="ignore", invalid="ignore"):
        return wide.astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_counted_in_the_pass_of_the_statistics(dtype: Any) -> None:
    values = made(dtype)
    running, without = RunningStatistics(with_histogram=True), RunningStatistics()
    for piece in np.array_split(values, 3):
        running.update(piece)
        without.update(piece)
    rows = {e: (positive, negative) for e, positive, negative in running.histogram_rows().tolist()}
    assert rows == counted(values)
    np.testing.assert_equal(running.row(), without.row())
    assert not len(without.histogram_rows())


@given(cuts=st.lists(st.integers(0, 9_001), max_size=6), dtype=st.sampled_from(["f4", "f8", "f2"]))
def test_any_split_gives_the_same_and_parts_add_up(cuts: list[int], dtype: str) -> None:
    values = made(dtype, 9_001)
    running, added = RunningStatistics(with_histogram=True), np.zeros((2, BINS - 1), np.int64)
    for piece in np.split(values, sorted(cuts)):
        running.update(piece)
        part = histogram_of(piece)
        added += part.positive, part.negative
    whole = histogram_of(values)
    np.testing.assert_equal(added, [whole.positive, whole.negative])
    pieces = Histogram.of_rows(running.histogram_rows(), running.result())
    np.testing.assert_equal([pieces.positive, pieces.negative], added)


# The answers of a table are those of each histogram by itself.


_PLACES = st.integers(0, BINS - 2)
_BINS = st.dictionaries(_PLACES, st.integers(1, 50), max_size=5)
TABLE_SHARES = [0, 0.01, 0.25, 0.5, 0.95, 0.999, 1]
FORMATS = ["float16", "bfloat16", "e4m3", "e5m2", "mxfp8", "nvfp4", "e8m3", "e10m3"]


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    """A histogram and ends that fit it; the last bin may hold numbers beyond float32."""
    positive, negative, zeros = draw(_BINS), draw(_BINS), draw(st.integers(0, 3))
    fraction = draw(st.sampled_from([0.5, 0.75, 1.0]))

    def magnitude(place: int) -> float:
        return (
            float(np.ldexp(2 * fraction, place + LOWEST_EXPONENT))
            if fraction > 0.5
            else float(np.ldexp(1.0, place + LOWEST_EXPONENT) * (1 + 2**-20))
        )

    numbers = [magnitude(place) for place in positive] + [-magnitude(place) for place in negative]
    numbers += [0.0] * bool(zeros)
    dense = []
    for bins in (positive, negative):
        counts = np.zeros(BINS - 1, np.int64)
        counts[list(bins)] = list(bins.values())
        dense.append(counts)
    ends = (min(numbers), max(numbers)) if numbers else (np.nan, np.nan)
    return Histogram(dense[0], dense[1], zeros, *ends)


def table_of(members: list[Histogram]) -> HistogramTable:
    tensor, bins = [], []
    for number, member in enumerate(members):
        for place in np.flatnonzero(member.magnitudes).tolist():
            tensor.append(number)
            bins.append((place + LOWEST_EXPONENT, member.positive[place], member.negative[place]))
    return HistogramTable.of_entries(
        np.array(tensor, np.int64),
        np.array(bins, np.int64).reshape(-1, 3),
        np.array([member.zeros for member in members], np.int64),
        np.array([member.low for member in members], np.float64),
        np.array([member.high for member in members], np.float64),
    )


def assert_equal(column: tuple[np.ndarray, np.ndarray], expected: list[Bounds]) -> None:
    np.testing.assert_array_equal(column[0], [bounds.low for bounds in expected])
    np.testing.assert_array_equal(column[1], [bounds.high for bounds in expected])


@settings(max_examples=50, deadline=None)
@given(st.lists(histograms(), max_size=4))
def test_answers_are_those_of_each_histogram(members: list[Histogram]) -> None:
    table = table_of(members)
    for share in TABLE_SHARES:
        for magnitude in (False, True):
            expected = [member.quantile(share, magnitude=magnitude) for member in members]
            assert_equal(table.quantile(share, magnitude=magnitude), expected)
    for name in FORMATS:
        target = format_named(name)
        lost = [losses(member, target) for member in members]
        assert_equal(table.overflow(target), [loss.overflow for loss in lost])
        assert_equal(table.underflow(target), [loss.underflow for loss in lost])


@pytest.mark.parametrize("number", [1, 3])
def test_tensors_of_nothing_have_no_quantiles(number: int) -> None:
    nothing = Histogram(np.zeros(BINS - 1, np.int64), np.zeros(BINS - 1, np.int64), 0, np.nan, np.nan)
    table = table_of([nothing] * number)
    assert np.isnan(table.quantile(0.5).low).all()
    assert table.largest.tolist() == [0] * number


# What casts lose, predicted from histograms, against casts by ml_dtypes of the tensors of real dumps.


ROUNDED_FORMATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e4m3fnuz")
Array = np.ndarray[Any, Any]


def cast_losses(values: Array, target: NumberFormat, scale: float) -> tuple[int, int]:
    """Return how many finite elements overflow in a cast, and how many others than zero vanish."""
    finite = values[np.isfinite(values)]
    dtype = np.dtype(target.name if target.name == "float16" else getattr(ml_dtypes, target.name))
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = (finite * np.float32(scale)).astype(dtype).astype(np.float32)
    return int((~np.isfinite(rounded)).sum()), int(((rounded == 0) & (finite != 0)).sum())


def lies_in(count: int, bounds: Bounds) -> bool:
    return bounds.low <= count <= bounds.high


@pytest.fixture(scope="module")
def tensors(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> list[Array]:
    """The distinct tensors of real dumps, as float32."""
    root = tmp_path_factory.mktemp("rounding")

    def of(name: str) -> Iterator[Array]:
        ingest_directly(dumps[name] / "dump", root / name)
        known = {tensor.digest: tensor for tensor in open_store(root / name).tensors() if tensor.is_dumped}
        for tensor in known.values():
            values = tensor.read().reshape(-1)
            if values.dtype.name in ("float16", "float32", "bfloat16"):
                yield values.astype(np.float32)

    return [array for name in ("dtypes-1rank", "inf-explode-1rank", "lenet-1rank") for array in of(name)]


@pytest.mark.parametrize("name", ROUNDED_FORMATS)
def test_casts_of_real_tensors_lose_what_is_predicted(tensors: list[Array], name: str) -> None:
    target = NAMED[name]
    for values in tensors:
        histogram = histogram_of(values)
        for scale in (1.0, 2.0**7, 2.0**-9, 3.7):
            overflow, underflow = cast_losses(values, target, scale)
            predicted = losses(histogram, target, scale)
            assert lies_in(overflow, predicted.overflow)
            assert lies_in(underflow, predicted.underflow)
            if power_below(scale) == scale and name != "bfloat16":  # that vanishes within the lowest bin
                assert predicted.underflow.is_exact
            if not overflow:
                assert predicted.overflow == Bounds(0, 0)


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4"])
def test_underflow_in_blocks_is_bounded(tensors: list[Array], name: str) -> None:
    target = NAMED[name]
    for values in tensors:
        finite = values[np.isfinite(values)]
        blocks = np.pad(finite, (0, -finite.size % target.block)).reshape(-1, target.block)
        largest = np.abs(blocks).max(axis=1, initial=0, keepdims=True).astype(np.float64)
        unit = np.where(largest > 0, largest / target.largest, 1)
        if target.has_power_scales:
            unit = 2.0 ** np.ceil(np.log2(unit))
        vanish = int(((np.abs(blocks) <= target.vanishing * unit) & (blocks != 0)).sum())
        predicted = losses(histogram_of(values), target)
        assert lies_in(vanish, predicted.underflow)
        assert predicted.overflow == Bounds(0, 0)


# Positions that stand out, are dead or are saturated, against numpy.


RNG = np.random.default_rng(3)
CHANNELS = RNG.standard_normal((300, 40)).astype(np.float32)
CHANNELS[:, 7] *= 30
CHANNELS[11, 9] = 200
CHANNELS[:, 20:23] = 0
CHANNELS[:, 30] = np.sign(CHANNELS[:, 30])
COLUMNS = marginals_of(CHANNELS, [1])[1]


@pytest.mark.parametrize("by", [ABS_MAX, L2_NORM])
@pytest.mark.parametrize("factor", [2.0, 10.0, 60.0])
def test_outliers_are_those_of_numpy(by: str, factor: float) -> None:
    values = np.abs(CHANNELS).max(axis=0) if by == ABS_MAX else np.linalg.norm(CHANNELS, axis=0)
    median = np.median(values[values > 0])
    channels = channels_of(COLUMNS, 300, by=by, factor=factor)
    assert channels.outlying.tolist() == np.flatnonzero(values > factor * median).tolist()
    assert channels.median == pytest.approx(median, rel=1e-6)


def test_dead_and_saturated_ones_are_named() -> None:
    channels = channels_of(COLUMNS, 300)
    assert channels.dead.tolist() == [20, 21, 22]
    assert channels.saturated.tolist() == [30]


def test_what_is_odd_everywhere_is_not_odd() -> None:
    ones = marginals_of(np.ones((100, 50), np.float32), [1])[1]
    assert not channels_of(ones, 100).saturated.size
    few = marginals_of(CHANNELS[:, 7:12].copy(), [1])[1]
    channels = channels_of(few, 300)
    assert np.isnan(channels.median)
    assert not channels.outlying.size


@pytest.mark.parametrize("by", [ABS_MAX, L2_NORM])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_measures_are_within_their_errors(by: str, scale: float) -> None:
    values = RNG.standard_normal((5000, 30)) * scale
    truth = (
        np.abs(values).max(axis=0) if by == ABS_MAX else np.sqrt(np.square(values.astype("g")).sum(axis=0))
    )
    told = channels_of(marginals_of(values, [1])[1], 5000, by=by).values
    errors = [relative_error(by, value, 5000, is_rounded=True) for value in told.tolist()]
    assert (np.abs(told - truth) <= np.array(errors) * truth).all()
    assert max(errors) < 1e-7


# Sums along the axes of tensors of any shape and type, in any pieces, against numpy.


SHAPES = ((300, 250), (7, 11, 13, 17), (64, 64, 3, 3), (2, 3000), (5000, 1, 2), (3, 70, 2, 40), (4, 9000))


def expected(values: np.ndarray[Any, Any], axis: int) -> Marginal:
    wide = np.where(np.isfinite(values), values, 0).astype(np.float64)
    others = tuple(other for other in range(values.ndim) if other != axis)
    norm = np.sqrt(np.square(wide).sum(axis=others))
    table = np.stack([wide.sum(axis=others), norm, np.abs(wide).max(axis=others)])
    return Marginal(*table.astype(np.float32))


def marginals_made(shape: tuple[int, ...], dtype: Any, *, finite: bool = True) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(math.prod(shape))
    values = rng.standard_normal(shape) * np.exp(rng.standard_normal(shape))
    if not finite:
        values.reshape(-1)[[5, 50, -1]] = np.nan, np.inf, -np.inf
    return values.astype(dtype)


RANKS = marginals_made((40, 20, 30), "f4")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_every_axis_is_summed_as_numpy_sums_it(shape: tuple[int, ...], dtype: str) -> None:
    values = marginals_made(shape, dtype)
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    summed = marginals_of(values, axes)
    assert sorted(summed) == axes
    for axis in axes:
        assert summed[axis].agrees_with(expected(values, axis))


@pytest.mark.parametrize("dtype", ["f2", ">f4", "f4", "f8", ml_dtypes.bfloat16])
@pytest.mark.parametrize("fortran_order", [False, True])
def test_they_are_made_in_the_pass_of_the_statistics(dtype: Any, *, fortran_order: bool) -> None:
    values = marginals_made((300, 400), dtype, finite=False)
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
    values = marginals_made((7, 11, 78), "f4")
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


# Digests of blocks do not depend on the pieces, and differ where payloads differ.


PAYLOAD = np.random.default_rng(0).bytes(3 * BLOCK_NBYTES + 100)


def digests(payload: bytes, cuts: list[int] | None = None) -> list[int]:
    running = RunningBlockDigests()
    edges = [0, *sorted(cuts or []), len(payload)]
    for begin, end in pairwise(edges):
        running.update(memoryview(payload)[begin:end])
    made: list[int] = running.result().view(np.uint64).tolist()
    return made


@given(cuts=st.lists(st.integers(0, len(PAYLOAD)), max_size=5))
def test_any_pieces_give_the_digests_of_the_blocks(cuts: list[int]) -> None:
    blocks = [PAYLOAD[start : start + BLOCK_NBYTES] for start in range(0, len(PAYLOAD), BLOCK_NBYTES)]
    assert digests(PAYLOAD, cuts) == [xxhash.xxh3_64_intdigest(block) for block in blocks]
    assert len(blocks) == blocks_of(len(PAYLOAD))


def test_runs_are_where_digests_differ() -> None:
    first = np.array([1, 2, 3, 4, 5])
    assert differing_runs(first, np.array([0, 0, 3, 4, 0])) == [(0, 2), (4, 5)]
    assert differing_runs(first, first) == []
    with pytest.raises(ValueError, match="5 blocks and 4"):
        differing_runs(first, first[:4])
