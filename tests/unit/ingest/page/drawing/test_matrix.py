"""Cells of ranks and steps as paths, one for each colour."""

import re

import numpy as np
import pytest

from ingest.page.drawing.matrix import legend, matrix_picture
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, PARTIAL, Matrix


def made(values: list[list[float]], state: list[list[int]] | None = None, *, is_count: bool = True) -> Matrix:
    array = np.array(values, float)
    states = np.full(array.shape, KNOWN) if state is None else np.array(state)
    return Matrix(
        "made",
        tuple((rank, rank) for rank in range(array.shape[0])),
        tuple((10 + step, 10 + step) for step in range(array.shape[1])),
        array,
        states,
        (states == MISSING).astype(np.int64),
        array > 5,
        is_count=is_count,
    )


def cells(drawn: str) -> dict[str, int]:
    """Return by colour how many cells have it."""
    return {css: path.count("M") for path, css in re.findall(r'<path d="([^"]*)" class="(\w+)"', drawn)}


def test_every_cell_has_one_colour_and_marks_come_above() -> None:
    matrix = made([[0, 1, 9], [np.nan, 0, 0]], [[KNOWN, PARTIAL, DAMAGED], [MISSING, KNOWN, KNOWN]])
    counted = cells(matrix_picture(matrix, "a <label>"))
    marks = {"partial": counted.pop("partial"), "damaged": counted.pop("damaged")}
    assert marks == {"partial": 1, "damaged": 1}
    assert (counted["missing"], counted["zero"], sum(counted.values())) == (1, 3, 6)


def test_statistics_have_a_notch_where_they_are_not_finite_and_counts_have_none() -> None:
    assert cells(matrix_picture(made([[1, 9]], is_count=False), "x"))["notch"] == 1
    assert "notch" not in cells(matrix_picture(made([[1, 9]]), "x"))


def test_the_script_is_told_where_cells_are() -> None:
    drawn = matrix_picture(made([[1, 2, 3], [4, 5, 6]]), "a <label>")
    assert 'data-rows="2"' in drawn
    assert 'data-columns="3"' in drawn
    assert "<title>a &lt;label&gt;</title>" in drawn
    assert ">10</text>" in drawn


@pytest.mark.parametrize("shape", [(1, 1), (88, 240)])
def test_numbers_of_ranks_and_steps_do_not_crowd(shape: tuple[int, int]) -> None:
    drawn = matrix_picture(made(np.ones(shape).tolist()), "x")
    assert 1 <= drawn.count('class="tick mid"') <= 24
    assert 1 <= drawn.count('class="tick end"') <= 24


def test_the_legend_has_what_the_picture_has() -> None:
    matrix = made([[0, 1, 1000], [np.nan, 0, 0]], [[KNOWN, PARTIAL, DAMAGED], [MISSING, KNOWN, KNOWN]])
    words = dict(legend(matrix))
    assert words["zero"] == "0"
    assert words["lv1"] == "from 1"
    assert {"partial", "damaged", "missing"} <= words.keys()
    assert dict(legend(made([[7.0, 7.0]]))) == {css: "7" for css, _ in legend(made([[7.0, 7.0]]))}
    assert legend(made([[np.nan, np.nan]], [[KNOWN, MISSING]])) == [
        ("unknown", "not known"),
        ("missing", "not committed"),
    ]
    assert [css for css, _ in legend(made([[np.nan]], [[DAMAGED]]))] == ["damaged"]
