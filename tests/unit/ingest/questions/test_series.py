"""Questions about values over the steps: trends, heatmaps, percentiles, and how far runs are apart."""

import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import ingest
from bench.steps import commit_tables, make_tables
from ingest.questions import plot
from ingest.questions.choosing import empty_choice_error, statistic_for, statistic_named
from ingest.questions.compare.thresholds import ThresholdRule
from ingest.questions.growth import LEAST, ErrorGrowth, error_growth
from ingest.questions.heatmap import ALL, UNKNOWN, ZERO, HeatmapScale, heatmap, heatmap_figure
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, Matrix, matrix, parse_range, rank_values
from ingest.questions.placement.layout_map import MappedPlacement
from ingest.questions.quantiles import quantiles
from ingest.questions.question import Table
from ingest.questions.trend import Line, TrendAnswer, lines_of, trend, trend_figure
from ingest.reader.catalog import Damage
from ingest.reader.tensor_filter import FilterFields, TensorFilter
from tests.replicas import Replicas, gappy_replicas
from tests.rule_sets import only
from tests.stores import DumpLibrary, ingest_directly
from workers.arrays.statistics import FIELDS, STATISTICS
from workers.errors import UsageError
from workers.model import StepKey
from workers.store.consolidated.blocks import BLOCK_COLUMNS, TensorKey
from workers.store.opening import open_objects, resolve

# Trends: values, lines, and the picture in which fifty lines and 64 ranks can be told apart.


def test_a_trend_is_what_the_files_hold(nan_log: Path, dumps: DumpLibrary) -> None:
    store = ingest.open_store(nan_log)
    frame = trend(store, "Log.*", "norm")
    assert frame.attrs["statistic"] == "l2_norm"
    tensors: dict[tuple[Any, ...], ingest.Tensor] = {
        (tensor.name, tensor.rank, tensor.step): tensor for tensor in store.tensors(name="Log.*")
    }
    assert len(frame) == len(tensors) == 12
    for row in frame.itertuples():
        values = np.load(dumps["nan-log-2rank"] / "dump" / tensors[row.name, row.rank, row.step].source)
        finite = values[np.isfinite(values)].astype(np.float64)
        assert row.value == pytest.approx(np.linalg.norm(finite))
        assert row.non_finite == np.count_nonzero(~np.isfinite(values))


def test_what_a_rank_does_not_have_has_no_row() -> None:
    frame = trend(gappy_replicas().store, "Adam.w.*")
    assert set(zip(frame["rank"], frame["step"], strict=True)) == {
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (1, 3),
    }  # fmt: skip
    assert frame.attrs["left_out"] == ["rank 0 step 3: partial"]
    assert len(trend(gappy_replicas().store, "Adam.w.*", include_partial=True)) == 7


def test_occurrences_in_a_loop_are_lines_of_their_own(dumps: DumpLibrary, tmp_path: Path) -> None:
    ingest_directly(dumps["lenet-1rank"] / "dump", tmp_path / "run.zarr")
    names = {tensor.name for tensor in ingest.open_store(tmp_path / "run.zarr").tensors()}
    frame = trend(ingest.open_store(tmp_path / "run.zarr"), "*", "max")
    assert set(frame["name"]) == names
    assert frame["rank"].dtype == frame["step"].dtype == np.int64


def frame(*rows: tuple[str, str, int, int, float, float]) -> pd.DataFrame:
    """Return a trend of these names, graphs, ranks, steps, values and numbers of NaN and Inf."""
    made = pd.DataFrame(rows, columns=["name", "graph", "rank", "step", "value", "non_finite"])
    made["net"] = "Net"
    made.attrs = {"statistic": "max", "left_out": []}
    return made


def test_all_lines_cover_the_steps_of_any_of_them() -> None:
    first, second = lines_of(frame(("a", "0", 0, 1, 5, 0), ("a", "0", 0, 7, 6, 2), ("b", "0", 0, 3, 8, 0)))
    assert (first.rank, first.name) == ("0", "a")
    np.testing.assert_array_equal(first.heights, [5, np.nan, 6])
    np.testing.assert_array_equal(first.present, [True, False, True])
    np.testing.assert_array_equal(first.bad, [False, False, True])
    np.testing.assert_array_equal(second.present, [False, True, False])


def test_least_and_greatest_value_leave_out_what_is_not_finite() -> None:
    values = [3, -1, np.inf, np.nan]
    (row,) = (
        TrendAnswer(frame(*(("a", "0", 0, step, value, 0) for step, value in enumerate(values))))
        .table()
        .cells()
    )
    assert row[:6] == ["0", "a", "3", "-", "-1", "3"]


STEPS = range(4)


def line(rank: int, name: str, *heights: float, bad: tuple[int, ...] = ()) -> Line:
    values = np.array(heights or (1.0, 2.0, 3.0, 4.0))
    marks = np.zeros(values.size, bool)
    marks[list(bad)] = True
    return Line(str(rank), name, values, np.ones(values.size, bool), marks)


def axes_of(*lines: Line) -> Any:
    (axes,) = trend_figure("title", STEPS, lines, "mean").axes
    return axes


def labels(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def looks(axes: Any) -> set[tuple[str, str]]:
    return {(drawn.get_color(), str(drawn._dash_pattern)) for drawn in axes.get_legend().get_lines()}


def test_ranks_that_stand_out_have_colours_and_labels_and_the_others_are_grey() -> None:
    lines = [line(rank, "a", *(1 + rank / 1000,) * 4) for rank in range(64)]
    lines[7] = line(7, "a", 1, 1, 5, 1)
    lines[9] = line(9, "a", 1, np.nan, np.nan, np.nan, bad=(1, 2, 3))
    lines[5] = line(5, "a", *(np.nan,) * 4, bad=(0, 1, 2, 3))
    axes = axes_of(*lines)
    assert set(labels(axes)) == {"rank 5: no finite value", "rank 7", "rank 9", "the other 61 ranks"}
    assert len(looks(axes)) == 4


def test_nan_names_its_ranks_where_they_change() -> None:
    nan = np.nan
    axes = axes_of(
        line(1, "a", 1, nan, nan, nan, bad=(1, 2, 3)), line(0, "a"), line(2, "a", 1, 2, 3, nan, bad=(3,))
    )
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["NaN/Inf: rank 1", "NaN/Inf: rank 1-2"]


def test_legend_is_outside_and_counts_what_it_leaves_out() -> None:
    axes = axes_of(*(line(0, f"t{number}") for number in range(70)))
    assert axes.get_legend().get_bbox_to_anchor().x0 > axes.get_window_extent().x1
    assert (len(labels(axes)), labels(axes)[-1]) == (64, "t63  (and 6 more)")


@pytest.mark.parametrize(
    ("heights", "scale"),
    [
        ((1, 1e6, 1, 1), "log"),
        ((1, 10, 5, 5), "linear"),
        ((0, 1e-3, 1e38, 1), "symlog"),
        ((-1, 1e6, 0, 0), "symlog"),
        ((0, 0, 0, 0), "linear"),
    ],
)
def test_logarithmic_scale_survives_zero(heights: tuple[float, ...], scale: str) -> None:
    axes = axes_of(line(0, "a", *heights))
    assert axes.get_yscale() == scale
    assert plot.png(axes.figure)


# How far two runs are apart over the steps.


NAMES = [f"op{number}" for number in range(5)]
NORM = FIELDS.index("l2_norm")


def commit_counts(store: Path, counts: list[float]) -> ingest.DumpStore:
    """Commit a step of statistics alone, whose tensors have these numbers of NaN."""
    made = make_tables(StepKey(0, 0), NAMES[: len(counts)])
    made.digest[:] = 0
    made.statistics[:, NORM] = 10.0
    made.statistics[:, FIELDS.index("nan_count")] = counts
    commit_tables(open_objects(resolve(str(store))), StepKey(0, 0), made)
    return ingest.open_store(store)


def commit_run(store: Path, *, drift: float, steps: int = 3) -> ingest.DumpStore:
    """Commit a run whose operators 2, 3 and 4 drift: in the statistic, in the bytes alone, to a NaN."""
    objects = open_objects(resolve(str(store)))
    for step in range(steps):
        made = make_tables(StepKey(0, 0), NAMES)
        made.statistics[:, NORM] = 10.0
        made.statistics[:, FIELDS.index("mean")] = np.nan
        if drift and step:
            made.statistics[2, NORM] *= 1 - drift * step
            made.digest[2:, 0] += 1
            made.statistics[4, FIELDS.index("nan_count")] = 1
        commit_tables(objects, StepKey(0, step), made)
    return ingest.open_store(store)


@pytest.fixture
def growth(tmp_path: Path) -> ErrorGrowth:
    a, b = (commit_run(tmp_path / f"{drift}.zarr", drift=drift) for drift in (0.0, 0.25))
    return error_growth(a, b, rank=0)


def test_errors_are_those_of_the_statistic(growth: ErrorGrowth) -> None:
    expected = [[0] * 3, [0] * 3, [0, 0.25, 0.5], [0, LEAST, LEAST], [0, math.inf, math.inf]]
    np.testing.assert_array_equal(growth.errors, expected)
    assert (growth.steps, growth.rank, growth.statistic) == ((0, 1, 2), 0, "l2_norm")
    assert growth.by_onset() == [(2, 1), (3, 1), (4, 1)]
    assert growth.tensors[2].op_name == "op2"
    frame = growth.to_pandas()
    assert list(frame.loc["MatMul.op2.output.0"]) == [0, 0.25, 0.5]
    assert growth.rows()[7] == {
        "rank": 0, "step": 1, "name": "MatMul.op2.output.0", "graph": "0", "error": 0.25
    }  # fmt: skip


def test_a_name_and_a_statistic_choose(tmp_path: Path) -> None:
    a, b = (commit_run(tmp_path / f"{drift}.zarr", drift=drift, steps=2) for drift in (0.0, 0.25))
    chosen = error_growth(a, b, rank=0, stat="max", name="*op[23]*")
    assert [key.op_name for key in chosen.tensors] == ["op2", "op3"]
    np.testing.assert_array_equal(chosen.errors, [[0, LEAST]] * 2)
    with pytest.raises(ingest.UsageError, match="no tensor like"):
        error_growth(a, b, rank=0, name="absent")
    with pytest.raises(ingest.UsageError, match="sum of statistics"):
        error_growth(a, b, rank=0, stat="inf")


def test_a_damaged_step_is_left_out(tmp_path: Path) -> None:
    a, b = (commit_run(tmp_path / f"{name}.zarr", drift=0, steps=2) for name in "ab")
    for file in (tmp_path / "b.zarr" / "rank_0" / "step_0").rglob("*"):
        if file.is_file() and file.name != "zarr.json":
            file.write_bytes(b"damage")
    growth = error_growth(a, b, rank=0)
    assert growth.steps == (1,)
    assert [left.key.step for left in growth.left_out] == [0]
    assert str(growth.left_out[0]).endswith(f"({b.url})")
    assert growth.by_onset() == []


def test_a_step_with_a_damaged_commit_is_left_out_and_named(tmp_path: Path) -> None:
    a, b = (commit_run(tmp_path / f"{name}.zarr", drift=0) for name in "ab")
    (tmp_path / "a.zarr/rank_0/step_1/zarr.json").write_text("{}")
    growth = error_growth(a, b, rank=0)
    (left,) = growth.left_out
    assert (growth.steps, left.key.step, left.is_damaged) == ((0, 2), 1, True)


def test_other_bytes_are_a_difference_even_if_the_statistic_is_unknown(tmp_path: Path) -> None:
    a, b = (commit_run(tmp_path / f"{drift}.zarr", drift=drift) for drift in (0.0, 0.25))
    growth = error_growth(a, b, rank=0, stat="mean")
    assert growth.errors[2].tolist() == [0, LEAST, LEAST]


def test_a_statistic_that_is_not_known_is_no_agreement(tmp_path: Path) -> None:
    """A log of statistics may have other ones, and no digests."""
    stores = []
    for number, norm in enumerate((math.nan, 1.0)):
        made = make_tables(StepKey(0, 0), NAMES[:2])
        made.digest[:] = 0
        made.statistics[:, NORM] = [norm, math.nan]
        made.statistics[:, FIELDS.index("min")] = number
        objects = open_objects(resolve(str(tmp_path / f"{number}.zarr")))
        commit_tables(objects, StepKey(0, 0), made)
        stores.append(ingest.open_store(tmp_path / f"{number}.zarr"))
    a, b = stores
    with pytest.raises(ingest.UsageError, match="the l2_norm of no tensor is known on both sides"):
        error_growth(a, b, rank=0)
    assert error_growth(b, b, rank=0).unknown == 1
    assert len(error_growth(a, b, rank=0, stat="min").by_onset()) == 2


def test_a_number_of_nan_that_is_not_known_is_not_taken_for_zero(tmp_path: Path) -> None:
    unknown = math.nan
    a = commit_counts(tmp_path / "a.zarr", [3, 3, 0, unknown, unknown])
    b = commit_counts(tmp_path / "b.zarr", [0, unknown, 0, 3, unknown])
    growth = error_growth(a, b, rank=0)
    np.testing.assert_array_equal(growth.errors[:, 0], [math.inf, unknown, 0, unknown, 0])


# Heatmaps: aggregates of the values of a trend, gaps, and the scale of their colours.


ELEMENTS = 10**6


def field(values: list[float], statistic: str, aggregate: str = "sum", tensors: int = 3) -> xr.DataArray:
    array = np.array([values], float)
    axes = ("rank", "step")
    return xr.DataArray(
        array,
        dims=axes,
        coords={"elements": (axes, np.full(array.shape, float(ELEMENTS)))},
        attrs={"statistic": statistic, "aggregate": aggregate, "tensors": tensors},
    )


def levels(values: list[float], statistic: str, aggregate: str = "sum", tensors: int = 3) -> list[int]:
    levels: list[int] = HeatmapScale.of(field(values, statistic, aggregate, tensors)).level[0].tolist()
    return levels


@given(st.lists(st.integers(0, ELEMENTS), min_size=1))
def test_counts_are_zero_or_within_the_range_of_their_level_or_all(counts: list[int]) -> None:
    scale = HeatmapScale.of(field(list(map(float, counts)), "nan_count"))
    ranges = {level: (low, high) for level, low, high in scale.ranges}
    for count, level in zip(counts, scale.level[0].tolist(), strict=True):
        assert (level == ZERO) == (count == 0)
        assert (level == ALL) == (count == ELEMENTS)
        if level not in (ZERO, ALL):
            low, high = ranges[level]
            assert low <= count <= high
            assert low == int(low)
            assert high == int(high)
    assert list(ranges) == sorted(ranges)


def test_what_is_unknown_and_zero_have_levels_of_their_own() -> None:
    assert levels([math.nan, 0, math.inf, 5], "l2_norm", "max") == [UNKNOWN, ZERO, UNKNOWN, 4]
    assert levels([-1, 0, 3], "mean", "max") == [1, 2, 4]
    assert levels([0, 0], "nan_count") == [ZERO, ZERO]
    assert levels([1, 10, 1e4, 1e8], "l2_norm", "max") == [1, 1, 3, 4]


# Ranks by steps, and their aggregation.


def made(values: list[list[float]], state: list[list[int]]) -> Matrix:
    rows, columns = np.shape(values)
    return Matrix(
        "made",
        tuple((rank, rank) for rank in range(rows)),
        tuple((step, step) for step in range(columns)),
        np.array(values, float),
        np.array(state),
        (np.array(state) == MISSING).astype(np.int64),
        np.array(values, float) > 5,
        is_count=True,
    )


def test_a_damaged_step_is_a_damaged_cell(nan_log: Path, tmp_path: Path) -> None:
    shutil.copytree(nan_log, tmp_path / "run.zarr")
    commit = tmp_path / "run.zarr/rank_1/step_3/zarr.json"
    commit.write_bytes(commit.read_bytes()[:-9])
    store = ingest.open_store(tmp_path / "run.zarr")
    for stat in ("non_finite", "max"):
        states = matrix(store, stat).state.tolist()
        assert states == [[KNOWN, KNOWN, KNOWN], [KNOWN, KNOWN, DAMAGED]]
    assert matrix(store, cells=(1, 2)).state.tolist() == [[KNOWN, DAMAGED]]


def test_ten_million_cells_become_as_many_as_fit() -> None:
    ranks, steps = 10_000, 1_000
    values = np.zeros((ranks, steps))
    values[7_777, 333] = 3
    binned = Matrix(
        "many",
        tuple((rank, rank) for rank in range(ranks)),
        tuple((step, step) for step in range(steps)),
        values,
        np.ones(values.shape, np.int64),
        np.zeros(values.shape, np.int64),
        values > 0,
        is_count=True,
    ).binned(88, 240)
    shown = binned.values  # noqa: PD011  (not of pandas)
    assert shown.shape[0] <= 88
    assert shown.shape[1] <= 240
    assert shown.max() == 3
    assert binned.bad.sum() == 1


@pytest.mark.parametrize(("words", "chosen"), [("", [0, 2, 5]), ("2", [2]), ("1-9", [2, 5])])
def test_ranges_choose_from_what_there_is(words: str, chosen: list[int]) -> None:
    assert parse_range(words, [0, 2, 5], "steps") == chosen


@pytest.mark.parametrize("words", ["x", "3-", "-3", "1-2-3", "7", "²", "1-²", "٣", "9" * 5000])
def test_wrong_ranges_are_named(words: str) -> None:
    with pytest.raises(UsageError, match="steps"):
        parse_range(words, [0, 2, 5], "steps")


@pytest.mark.parametrize("pattern", [None, "*", "Adam.w.*"])
@pytest.mark.parametrize("is_consolidated", [False, True])
def test_they_are_the_values_of_the_heatmap(pattern: str | None, *, is_consolidated: bool) -> None:
    store = gappy_replicas().store
    if is_consolidated:
        ingest.consolidate(store.url)
    field = heatmap(store, pattern, "max")
    values = rank_values(store, pattern, "max")
    assert list(values) == field["step"].to_numpy().tolist() == [0, 1, 2, 3]
    for step, known in values.items():
        column = field.sel(step=step, rank=known.ranks)
        np.testing.assert_array_equal(known.values, column)
    assert [values[step].ranks.tolist() for step in (0, 1)] == [[0, 1], [0]]


# Plots show names as they are, and need nothing else.


HOSTILE = "<script>alert(1)</script>$x_{$\x1b[31m\n&\"'"


@pytest.fixture
def odd_names() -> Replicas:
    made = Replicas()
    for step in range(3):
        made.put(0, step, {f"Log.{HOSTILE}.output.0": step + 1, "Log._hidden.output.0": step + 1})
    return made


def test_names_run_nothing_in_a_page_and_are_no_formulas(odd_names: Replicas) -> None:
    values = np.arange(3.0)
    present, bad = np.ones(3, bool), np.zeros(3, bool)
    lines = [Line("0", name, values, present, bad) for name in (HOSTILE, "_hidden")]
    figure = trend_figure(HOSTILE, [0, 1, 2], lines, "l2_norm")
    assert plot.png(figure)
    text = plot.page(HOSTILE, [HOSTILE, Table({HOSTILE: str}, [HOSTILE], "x")], figure=figure)
    assert "<script" not in text
    assert len(figure.axes[0].get_legend().get_texts()) == 2
    assert plot.png(heatmap_figure(HOSTILE, heatmap(odd_names.store, "Log.*")))


def test_without_matplotlib_it_says_how_to_get_it(
    odd_names: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.colors", None)
    with pytest.raises(UsageError, match="matplotlib") as error:
        trend_figure("", [0], [], "l2_norm")
    assert error.value.hint == "pip install 'dump-ingest[plot]'"
    with pytest.raises(UsageError, match="matplotlib"):
        heatmap_figure("", heatmap(odd_names.store, "Log.*"))


def test_none_some_and_all_have_colours_of_their_own(odd_names: Replicas) -> None:
    axes = ("rank", "step")
    field = heatmap(odd_names.store, "Log._hidden*", "nan_count")
    field = field.copy(data=np.array([[0.0, 2, 4]])).assign_coords(elements=(axes, np.full((1, 3), 4.0)))
    labels = [text.get_text() for text in heatmap_figure("", field).axes[0].get_legend().get_texts()]
    assert labels == ["0", "all elements"]
    empty = field.copy(data=np.zeros((1, 3)))
    assert plot.png(heatmap_figure("", empty))


# Percentiles: between bounds from histograms, exact from elements, the same after the elements are gone.


PERCENTS = (0.0, 1.0, 50.0, 99.9, 100.0)


@pytest.mark.parametrize("magnitude", [False, True])
def test_bounds_hold_what_numpy_computes_and_elements_give_it_exactly(
    sketched_store: Path, *, magnitude: bool
) -> None:
    store = ingest.open_store(sketched_store)
    tensors = {tensor.name: tensor for tensor in store.tensors(rank=1, step=2)}
    chosen = {"percents": PERCENTS, "magnitude": magnitude, "rank": 1, "step": 2}
    bounded = quantiles(store, **chosen)  # type: ignore[arg-type]  # of several types
    exact = quantiles(store, exact=True, **chosen)  # type: ignore[arg-type]  # of several types
    assert len(bounded.tensors) == len(exact.tensors) == len(tensors)
    for low_and_high, elements in zip(bounded.tensors, exact.tensors, strict=True):
        values = tensors[elements.name].read().astype(np.float64)
        values = values[np.isfinite(values)]
        values = np.abs(values) if magnitude else values
        if not values.size:
            continue
        assert elements.exactness == "exact"
        for percent in PERCENTS:
            expected = np.percentile(values, percent)
            assert elements.percentiles[percent].low == pytest.approx(expected, rel=1e-6)
            bounds = low_and_high.percentiles[percent]
            assert bounds.low - abs(bounds.low) * 1e-6 <= expected <= bounds.high + abs(bounds.high) * 1e-6


# Statistics, steps and tensors that users name, and why there may be none.


KEYS = [
    TensorKey("Net", "0", "MatMul", "fc-op0", "output", 0),
    TensorKey("Net", "0", "Log", "log-op0", "input", 0),
]


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        (
            {"name": "matmul.*"},
            "no tensor is named like 'matmul.*'",
            "In another case: MatMul.fc-op0.output.0",
        ),
        ({"op_type": "matmul"}, "no tensor has the op_type 'matmul'", "Did you mean MatMul? Case matters."),
        ({"op_type": "MatMull"}, "no tensor has the op_type 'MatMull'", "Near: MatMul"),
        ({"graph": "9"}, "no tensor has the graph '9'", "There are: 0"),
        ({"role": "loss", "io": "output"}, "no tensor fulfils --role 'loss' --io 'output'", "find STORE"),
    ],
)
def test_the_error_is_about_the_condition_that_nothing_fulfils(
    fields: FilterFields, message: str, hint: str
) -> None:
    error = empty_choice_error(TensorFilter(fields, BLOCK_COLUMNS), KEYS)
    assert error.message == message
    assert hint in error.hint


@pytest.mark.parametrize("ask", [trend, heatmap])
def test_what_is_not_there_is_refused_and_near_names_are_named(
    ask: Callable[..., object], nan_log: Path
) -> None:
    store = ingest.open_store(nan_log)
    with pytest.raises(UsageError, match="no tensor") as error:
        ask(store, "Logg.*")
    assert "Log.Default_net-LogLoss_Log-op0.output.0" in error.value.hint
    with pytest.raises(UsageError, match="no step 9"):
        ask(store, step=9)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("l2norm", "l2_norm"),
        ("norm", "l2_norm"),
        ("NaN", "nan_count"),
        ("inf", "inf_count"),
        ("posinf", "pos_inf_count"),
        ("stddev", "std"),
        ("Zero-Count", "zero_count"),
        *((name, name) for name in STATISTICS),
    ],
)
def test_statistics_go_by_several_names(name: str, meant: str) -> None:
    assert statistic_named(name) == meant


def test_without_a_name_a_loss_has_its_mean_and_anything_else_its_norm() -> None:
    assert statistic_for(None, {"role": "loss"}) == "mean"
    assert statistic_for(None, {"role": "weight"}) == statistic_for(None, {}) == "l2_norm"
    assert statistic_for("nan", {"role": "loss"}) == "nan_count"


@pytest.mark.parametrize(("model", "rest"), [(ThresholdRule, {}), (MappedPlacement, {"a": "replicated"})])
def test_what_is_not_a_regular_expression_is_refused(
    model: type[ThresholdRule | MappedPlacement], rest: dict[str, str]
) -> None:
    with pytest.raises(ValidationError, match="regex '\\('"):
        model.model_validate({"regex": "(", **rest})


# The histograms that a question gets, and the errors for a choice without any.


def test_damaged_histograms_are_left_out_and_named(sketched_store: Path, store: Path) -> None:
    shutil.copytree(sketched_store, store)
    (path,) = (store / "rank_0/step_2").glob("*/histograms/c/0/0")
    path.write_bytes(b"damaged")
    opened = ingest.open_store(store)
    quantiles = ingest.quantiles(opened, "Log.*output*")
    precision = ingest.precision(opened, "Log.*output*", "float16")
    tested = ingest.test_rules(opened, only(kind="percentile", percent=50, gt=1e30))
    for (left_out,) in (quantiles.left_out, precision.left_out, tested.left_out):
        assert left_out.is_damaged
        assert str(left_out).startswith("rank 0 step 2: damaged: ")
    assert (len(quantiles.tensors), len(precision.rows), tested.steps) == (5, 5, 5)
    damages: list[Damage] = []
    found = opened.tensors("Log.*output*", where="p50 < 1e30", damages=damages)
    assert {(tensor.rank, tensor.step) for tensor in found} == {(0, 1), (0, 3), (1, 1), (1, 2), (1, 3)}
    assert [str(damage.key) for damage in damages] == ["rank 0 step 2"]
