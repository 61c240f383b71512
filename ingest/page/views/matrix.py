"""The matrix: a number for each rank and step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingest.page.answers import (
    PATTERN,
    RANKS,
    STAT,
    STEPS,
    reads_tensors,
)
from ingest.page.asking import AnswerLine, Asked, Screen, lines, matrix_asked
from ingest.page.cells import legend, matrix_picture
from ingest.page.rendering import command, counted, number, whole
from ingest.questions.matrix import MOST_CELLS, SUMMARIES, Matrix, known_statistics
from workers.arrays.aggregate import ABOUT_NON_FINITE

#: How many of the greatest cells are listed.
_LISTED = 12
#: What should not be: it has a colour of its own.
_HOT = frozenset(["non_finite", "anomalous_tensors", "findings", "overflows", "problems", *ABOUT_NON_FINITE])


def show(asked: Asked) -> dict[str, Any]:
    """Return the matrix, its legend, and its greatest cells."""
    moment, arguments = asked.moment, asked.arguments
    what, pattern = arguments.text("stat", "non_finite"), arguments.text("name", "*")
    whole_matrix = matrix_asked(moment, arguments)
    matrix = whole_matrix.binned(*MOST_CELLS)
    rows, columns = whole_matrix.values.shape
    is_any = bool(rows and columns)
    label = f"{matrix.title} over {counted(rows, 'rank')} and {counted(columns, 'step')}"
    state = {name: arguments.text(name) for name in ("stat", "name", "ranks", "steps")}
    return {
        "is_any": is_any,
        "picture": matrix_picture(matrix, label) if is_any else "",
        "legend": legend(matrix) if is_any else [],
        "label": label,
        "matrix": matrix,
        "is_aggregated": matrix is not whole_matrix,
        "worst": _worst(asked, whole_matrix, what),
        "what": what,
        "is_hot": what in _HOT,
        "pattern": pattern,
        "summaries": SUMMARIES,
        "statistics": [name for name in known_statistics() if name not in SUMMARIES],
        "state": state,
        "is_brushed": bool(state["ranks"] or state["steps"]),
        "data_url": asked.links.api("matrix", **state),
        "lines": lines(asked, _line(asked, whole_matrix, what, pattern)),
    }


def _worst(asked: Asked, matrix: Matrix, what: str) -> list[dict[str, Any]]:
    """Return the cells with the greatest numbers, the first steps first, with the URL of their operators."""
    values = np.where(np.isnan(matrix.values), -np.inf, matrix.values)
    order = np.argsort(-values.T, axis=None, kind="stable")[:_LISTED]
    cells = []
    for place in order:
        column, row = np.unravel_index(place, values.T.shape)
        value = float(matrix.values[row, column])
        if not value > 0:
            break
        rank, step = matrix.ranks[int(row)][0], matrix.steps[int(column)][0]
        cells.append(
            {
                "rank": rank,
                "step": step,
                "value": whole(value) if matrix.is_count else number(value),
                "url": asked.links.view("cell", rank=rank, step=step, stat="" if what in SUMMARIES else what),
            }
        )
    return cells


def _line(asked: Asked, whole: Matrix, what: str, pattern: str) -> AnswerLine:
    """Return the line for what is shown."""
    rows, columns = MOST_CELLS
    words = ("heatmap", asked.url, *([] if what in SUMMARIES else [pattern]))
    options = ("--stat", what, "--cells", f"{rows}x{columns}")
    given = "" if what in SUMMARIES else f", {pattern!r}"
    braces = ""
    for name, ends in (("rank", whole.ranks), ("step", whole.steps)):
        if asked.arguments.text(f"{name}s"):
            numbers = [first for first, _ in ends]
            braces += f" --{name}={_in_braces(numbers)}"
            given += f", {name}={_as_python(numbers)}"
    python = f"ingest.matrix(store, {what!r}{given}, cells={MOST_CELLS!r})"
    return AnswerLine(command(*words, *options) + braces, python)


def _is_dense(numbers: Sequence[int]) -> bool:
    return len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1


def _in_braces(numbers: Sequence[int]) -> str:
    """Return numbers so that a shell repeats the word before them for each: `{3..9}`."""
    if len(numbers) == 1:
        return str(numbers[0])
    inside = f"{numbers[0]}..{numbers[-1]}" if _is_dense(numbers) else ",".join(map(str, numbers))
    return "{" + inside + "}"


def _as_python(numbers: Sequence[int]) -> str:
    """Return numbers as an expression: `range(3, 10)`."""
    return f"range({numbers[0]}, {numbers[-1] + 1})" if _is_dense(numbers) else repr(list(numbers))


SCREEN = Screen("matrix", "Matrix", "matrix.html.j2", (STAT, PATTERN, RANKS, STEPS), show, reads_tensors)
