"""The lines that `trend` draws."""

import numpy as np
import pandas as pd

from ingest.questions import plot
from ingest.questions.trend import TrendAnswer, lines_of, trend
from tests.replicas import Replicas

HOSTILE = "<script>alert(1)</script>$x_{$\x1b[31m\n&\"'"


def frame(*rows: tuple[str, str, int, int, float, float]) -> pd.DataFrame:
    """Return a trend of these names, graphs, ranks, steps, values and numbers of NaN and Inf."""
    made = pd.DataFrame(rows, columns=["name", "graph", "rank", "step", "value", "non_finite"])
    made["net"] = "Net"
    made.attrs = {"statistic": "max", "left_out": []}
    return made


def test_all_lines_cover_the_steps_of_any_of_them() -> None:
    first, second = lines_of(frame(("a", "0", 0, 1, 5, 0), ("a", "0", 0, 7, 6, 2), ("b", "0", 0, 3, 8, 0)))
    assert first.label == "0  a"
    np.testing.assert_array_equal(first.heights, [5, np.nan, 6])
    np.testing.assert_array_equal(first.present, [True, False, True])
    np.testing.assert_array_equal(first.bad, [False, False, True])
    np.testing.assert_array_equal(second.present, [False, True, False])


def test_tensors_of_one_name_in_several_graphs_are_told_apart() -> None:
    lines = lines_of(frame(("a", "0", 0, 1, 5, 0), ("a", "1", 0, 1, 6, 0)))
    assert [line.label for line in lines] == ["0  a  (Net, graph 0)", "0  a  (Net, graph 1)"]


def test_least_and_greatest_value_leave_out_what_is_not_finite() -> None:
    values = [3, -1, np.inf, np.nan]
    (row,) = (
        TrendAnswer(frame(*(("a", "0", 0, step, value, 0) for step, value in enumerate(values))))
        .table()
        .cells()
    )
    assert row[:6] == ["0", "a", "3", "-", "-1", "3"]


def test_names_run_nothing_in_a_page() -> None:
    made = Replicas()
    for step in range(3):
        made.put(0, step, {f"Log.{HOSTILE}.output.0": step + 1})
    answer = TrendAnswer(trend(made.store, "Log.*"))
    text = plot.page(HOSTILE, [*answer.remarks, answer.table()], figure=answer.figure(0))
    assert "<script" not in text
    assert "\x1b" not in text
