"""The error over operators and steps of two runs, for the view of two runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingest.page.drawing.matrix import legend, matrix_picture
from ingest.page.moment import Moment
from ingest.page.screen import Asked
from ingest.questions.compare.growth import ErrorGrowth, error_growth
from ingest.questions.matrix import KNOWN, Matrix
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, UsageError

#: What a picture has at most: rows are operators, which need not be told apart one by one.
_ROWS, _COLUMNS = 60, 240
_LISTED = 12
#: What a notch in a cell says.
_NOTCH = "only one of the two has NaN or Inf"


def growing(stat: str) -> str:
    """Return the statistic whose error is shown: this one, unless it is a sum of several."""
    return stat if stat in FIELDS else "l2_norm"


def growth_of(asked: Asked, its: Moment, rank: int, stat: str) -> dict[str, Any] | None:
    """Return the picture of the error and what differs first; None if there is nothing to show."""
    try:
        growth = error_growth(asked.moment.store, its.store, rank, growing(stat))
    except (UsageError, DamagedStore):
        return None
    matrix = _matrix(growth).binned(_ROWS, _COLUMNS)
    label = f"{matrix.title} of rank {rank}, operators in order of execution by steps"
    return {
        "rank": rank,
        "title": matrix.title,
        "picture": matrix_picture(matrix, label, rows_are="tensor"),
        "legend": [(css, _NOTCH if css == "notch" else words) for css, words in legend(matrix)],
        "tensors": len(growth.tensors),
        "steps": len(growth.steps),
        "firsts": _firsts(asked, growth),
        "left_out": growth.left_out,
    }


def _matrix(growth: ErrorGrowth) -> Matrix:
    errors = growth.errors
    return Matrix(
        f"relative error of {growth.statistic}",
        tuple((place, place) for place in range(len(growth.tensors))),
        tuple((step, step) for step in growth.steps),
        errors,
        np.full(errors.shape, KNOWN, np.int64),
        np.zeros(errors.shape, np.int64),
        np.isposinf(errors),
        is_count=False,
    )


def _firsts(asked: Asked, growth: ErrorGrowth) -> list[dict[str, Any]]:
    """Return the tensors that differ first, by step and order of execution, each once."""
    rows = []
    for place, column in growth.by_onset()[:_LISTED]:
        key, step = growth.tensors[place], growth.steps[column]
        rows.append(
            {
                "name": key.name,
                "step": step,
                "error": float(growth.errors[place, column]),
                "last": float(growth.errors[place, -1]),
                "url": asked.links.view(
                    "tensor", rank=growth.rank, step=step, name=key.name, graph=key.graph
                ),
            }
        )
    return rows
