"""Cells in colours."""

from __future__ import annotations

import re

import numpy as np

from ingest.page.cells import (
    LEVELS,
    Scale,
    matrix_picture,
    ribbon_picture,
    timeline_picture,
)
from ingest.questions.matrix import DAMAGED, KNOWN, MISSING, PARTIAL, Matrix


def levels(values: list[float], *, is_count: bool = False) -> list[int]:
    array = np.array(values)
    scale = Scale.of(array, is_count=is_count)
    assert scale is not None
    return [int(level) for level in scale.levels(array)]


def test_zero_some_and_unknown_differ() -> None:
    assert levels([0, 1, 1000, np.nan], is_count=True) == [0, 1, LEVELS, -1]


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


def test_many_operators_share_a_stripe_and_the_worst_is_seen() -> None:
    levels = [0] * 5000
    levels[1234] = 7
    bad = [level == 7 for level in levels]
    drawn = ribbon_picture(levels, bad, "operators")
    paths = dict(re.findall(r'<path d="([^"]*)" class="(\w+)"', drawn))
    count = {css: path.count("M") for path, css in paths.items()}
    assert count == {"zero": 1079, "lv7": 1, "mark": 1}


def boxes(drawn: str) -> list[str]:
    return re.findall(r'<rect[^>]* class="(\w+)"', drawn)


def test_one_affected_step_among_thousands_is_seen() -> None:
    drawn = timeline_picture(range(10_000), {7_777}, "steps")
    assert len(boxes(drawn)) == 180
    assert boxes(drawn).count("mark") == 1
