"""Trends: values, lines, and the picture in which fifty lines and 64 ranks can be told apart."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ingest
from ingest.questions import plot
from ingest.questions.trend import Line, TrendAnswer, lines_of, trend, trend_figure
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from tests.replicas import gappy_replicas


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
