"""The matrix: a number for each rank and step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingest.page.asking import (
    PATTERN,
    RANKS,
    STAT,
    STEPS,
    AnswerLine,
    Asked,
    Endpoint,
    lines,
    matrix_asked,
    reads_tensors,
)
from ingest.page.charts import legend, matrix_picture
from ingest.page.rendering import command, counted
from ingest.questions.matrix import MOST_CELLS, SUMMARIES, Matrix, known_statistics
from workers.arrays.statistics import ABOUT_NON_FINITE

#: How many of the greatest cells are listed.
_LISTED = 12
#: What should not be: it has a colour of its own.
_HOT = frozenset(["non_finite", "anomalous_tensors", "findings", "overflows", "problems", *ABOUT_NON_FINITE])


def show(asked: Asked) -> dict[str, Any]:
    """Return the matrix, its legend, and its greatest cells."""
    what = asked.arguments.text("stat", "non_finite")
    whole = matrix_asked(asked.moment, asked.arguments)
    matrix = whole.binned(*MOST_CELLS)
    rows, columns = whole.values.shape
    label = f"{matrix.title} over {counted(rows, 'rank')} and {counted(columns, 'step')}"
    is_any = bool(rows and columns)
    return {
        "is_any": is_any,
        "picture": matrix_picture(matrix, label) if is_any else "",
        "legend": legend(matrix) if is_any else [],
        "label": label,
        "matrix": matrix,
        "is_aggregated": matrix is not whole,
        "worst": _worst(whole),
        "what": what,
        "is_hot": what in _HOT,
        "pattern": asked.arguments.text("name", "*"),
        "summaries": SUMMARIES,
        "statistics": [name for name in known_statistics() if name not in SUMMARIES],
        "state": {name: asked.arguments.text(name) for name in ("stat", "name", "ranks", "steps")},
        "lines": lines(asked, _line(asked, whole, what)),
    }


def _worst(matrix: Matrix) -> list[tuple[int, int, float]]:
    """Return rank, step and value of the cells with the greatest numbers, the first steps first."""
    values = np.where(np.isnan(matrix.values), -np.inf, matrix.values).T
    order = np.argsort(-values, axis=None, kind="stable")[:_LISTED]
    columns, rows = (places.tolist() for places in np.unravel_index(order, values.shape))
    return [
        (matrix.ranks[row][0], matrix.steps[column][0], float(values[column, row]))
        for row, column in zip(rows, columns, strict=True)
        if values[column, row] > 0
    ]


def _line(asked: Asked, whole: Matrix, what: str) -> AnswerLine:
    """Return the line for what is shown."""
    pattern = [] if what in SUMMARIES else [asked.arguments.text("name", "*")]
    cells = "x".join(map(str, MOST_CELLS))
    shell = command("heatmap", asked.url, *pattern, "--stat", what, "--cells", cells)
    given = "".join(f", {name!r}" for name in (what, *pattern))
    for name, ends in (("rank", whole.ranks), ("step", whole.steps)):
        if asked.arguments.text(f"{name}s"):
            braces, python = _as_text([first for first, _ in ends])
            shell += f" --{name}={braces}"
            given += f", {name}={python}"
    return AnswerLine(shell, f"ingest.matrix(store{given}, cells={MOST_CELLS!r})")


def _as_text(numbers: Sequence[int]) -> tuple[str, str]:
    """Return numbers as a shell repeats the word before them, `{3..9}`, and for Python: `range(3, 10)`."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return str(first), repr([first])
    if last - first == len(numbers) - 1:
        return f"{{{first}..{last}}}", f"range({first}, {last + 1})"
    return f"{{{','.join(map(str, numbers))}}}", repr(list(numbers))


SCREEN = Endpoint(
    "matrix", "Matrix", (STAT, PATTERN, RANKS, STEPS), show, reads_tensors, template="matrix.html.j2"
)
