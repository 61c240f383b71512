"""Plots show names as they are, and need nothing else."""

import sys

import numpy as np
import pytest

from ingest.questions import plot
from ingest.questions.heatmap import heatmap, heatmap_figure
from ingest.questions.question import Table
from ingest.questions.trend import Line, trend_figure
from tests.replicas import Replicas
from workers.errors import UsageError

HOSTILE = "<script>alert(1)</script>$x_{$\x1b[31m\n&\"'"


@pytest.fixture
def store() -> Replicas:
    made = Replicas()
    for step in range(3):
        made.put(0, step, {f"Log.{HOSTILE}.output.0": step + 1, "Log._hidden.output.0": step + 1})
    return made


def test_names_run_nothing_in_a_page_and_are_no_formulas(store: Replicas) -> None:
    values = np.arange(3.0)
    present, bad = np.ones(3, bool), np.zeros(3, bool)
    lines = [Line("0", name, values, present, bad) for name in (HOSTILE, "_hidden")]
    figure = trend_figure(HOSTILE, [0, 1, 2], lines, "l2_norm")
    assert plot.png(figure)
    text = plot.page(HOSTILE, [HOSTILE, Table({HOSTILE: str}, [HOSTILE], "x")], figure=figure)
    assert "<script" not in text
    assert len(figure.axes[0].get_legend().get_texts()) == 2
    assert plot.png(heatmap_figure(HOSTILE, heatmap(store.store, "Log.*")))


def test_without_matplotlib_it_says_how_to_get_it(store: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.colors", None)
    with pytest.raises(UsageError, match="matplotlib") as error:
        trend_figure("", [0], [], "l2_norm")
    assert error.value.hint == "pip install 'dump-ingest[plot]'"
    with pytest.raises(UsageError, match="matplotlib"):
        heatmap_figure("", heatmap(store.store, "Log.*"))


def test_none_some_and_all_have_colours_of_their_own(store: Replicas) -> None:
    axes = ("rank", "step")
    field = heatmap(store.store, "Log._hidden*", "nan_count")
    field = field.copy(data=np.array([[0.0, 2, 4]])).assign_coords(elements=(axes, np.full((1, 3), 4.0)))
    labels = [text.get_text() for text in heatmap_figure("", field).axes[0].get_legend().get_texts()]
    assert labels == ["0", "all elements"]
    empty = field.copy(data=np.zeros((1, 3)))
    assert plot.png(heatmap_figure("", empty))
