"""Fifty lines and 64 ranks can be told apart, and NaN has a rank."""

from typing import Any

import numpy as np
import pytest

from ingest.questions import plot
from ingest.questions.trend_figure import Line, outlying, trend_figure

STEPS = range(4)
LONG = "MatMul.Default_network-TrainOneStepCell_network-WithLossCell_layer-{}-attention_MatMul-op0.output.0"


def line(rank: int, name: str, *heights: float, bad: tuple[int, ...] = ()) -> Line:
    values = np.array(heights or (1.0, 2.0, 3.0, 4.0))
    marks = np.zeros(values.size, bool)
    marks[list(bad)] = True
    return Line(f"{rank}  {name}", values, np.ones(values.size, bool), marks)


def axes_of(*lines: Line) -> Any:
    (axes,) = trend_figure("title", STEPS, lines, "mean").axes
    return axes


def labels(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def looks(axes: Any) -> set[tuple[str, str]]:
    return {(drawn.get_color(), str(drawn._dash_pattern)) for drawn in axes.get_legend().get_lines()}


def test_fifty_names_differ_in_text_and_look() -> None:
    axes = axes_of(*(line(0, LONG.format(number)) for number in range(50)))
    assert len(set(labels(axes))) == len(looks(axes)) == 50
    assert max(map(len, labels(axes))) <= 60


def test_ranks_of_one_tensor_differ_in_text_and_look() -> None:
    axes = axes_of(*(line(rank, "Loss.output.0") for rank in range(10)))
    assert labels(axes) == [f"rank {rank}" for rank in range(10)]
    assert axes.get_legend().get_title().get_text() == "Loss.output.0"
    assert len(looks(axes)) == 10


def test_many_ranks_have_a_scale_of_colours() -> None:
    figure = trend_figure("title", STEPS, [line(rank, "a", rank, rank, 1, 2) for rank in range(64)], "mean")
    axes, scale = figure.axes
    assert axes.get_legend() is None
    assert scale.get_ylabel() == "a: rank"
    assert len({str(drawn.get_color()) for drawn in axes.get_lines() if len(drawn.get_xdata())}) == 64


def test_ranks_that_stand_out_have_labels_and_the_others_are_grey() -> None:
    lines = [line(rank, "a", *(1 + rank / 1000,) * 4) for rank in range(64)]
    lines[7] = line(7, "a", 1, 1, 5, 1)
    lines[9] = line(9, "a", 1, np.nan, np.nan, np.nan, bad=(1, 2, 3))
    lines[5] = line(5, "a", *(np.nan,) * 4, bad=(0, 1, 2, 3))
    assert outlying(lines) == [5, 9, 7]
    axes = axes_of(*lines)
    assert labels(axes) == ["the other 61 ranks"]
    assert {text.get_text() for text in axes.texts} >= {"rank 5: no finite value", "rank 7", "rank 9"}
    heights = sorted(text.get_position()[1] for text in axes.texts if text.get_text().startswith("rank"))
    assert np.diff(heights).min() > 0.04


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
