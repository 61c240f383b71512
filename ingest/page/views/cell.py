"""The matrix of ranks and steps; and one cell of it: the operators of a step in order of execution."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.page.asking import (
    PATTERN,
    RANKS,
    STAT,
    STEPS,
    THE_RANK,
    THE_STEP,
    AnswerLine,
    Asked,
    Endpoint,
    UrlParameter,
    around,
    lines,
    matrix_asked,
    reads_tensors,
)
from ingest.page.charts import css_of, legend, level_legend, levels_of, matrix_picture, ribbon_picture
from ingest.page.rendering import command, counted
from ingest.questions.choosing import statistic_named
from ingest.questions.matrix import MOST_CELLS, SUMMARIES, Matrix
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from workers.arrays.statistics import ABOUT_NON_FINITE, COUNTS, STATISTICS, parts_of
from workers.rules.names import fits

#: Operators of one page.
_PER_PAGE = 150


def show(asked: Asked) -> dict[str, Any]:
    """Return a ribbon of all operators, and those of one page."""
    arguments = asked.arguments
    rank, step = arguments.need("rank"), arguments.need("step")
    stat = statistic_named(arguments.text("stat", "l2_norm"))
    opened = asked.moment.opened(rank, step)
    calls = _calls(opened, arguments.text("name"), stat)
    bad = [call["is_bad"] for call in calls]
    if arguments.flag("bad"):
        calls, bad = list(compress(calls, bad)), list(filter(None, bad))
    pages = max(-(-len(calls) // _PER_PAGE), 1)
    page = min(max(arguments.integer("page") or 1, 1), pages)
    values = np.array([call["value"] for call in calls])
    levels = levels_of(values, is_count=stat in COUNTS).tolist()
    shown = slice((page - 1) * _PER_PAGE, page * _PER_PAGE)
    state = {name: arguments.text(name) for name in ("stat", "name", "bad")}
    before, after = around(step, asked.moment.steps_of(rank))
    below, above = around(rank, asked.moment.ranks_with(step))
    first_bad = ((call, place // _PER_PAGE + 1) for place, call in enumerate(calls) if call["turns_bad"])
    label = f"{counted(len(calls), 'operator')} in order of execution, coloured by {stat}"
    return {
        "place": {"rank": rank, "step": step},
        "stat": stat,
        "statistics": STATISTICS,
        "value_of": lambda statistics: float(sum(getattr(statistics, part) for part in parts_of(stat))),
        "summary": opened.commit.summary,
        "operators": [(call, css_of(level)) for call, level in zip(calls[shown], levels[shown], strict=True)],
        "legend": level_legend(values, is_count=stat in COUNTS),
        "total": len(calls),
        "bad_total": sum(bad),
        "ribbon": ribbon_picture(levels, bad, label),
        "first_bad": list(islice(first_bad, 1)),
        "page": page,
        "pages": pages,
        "per_page": _PER_PAGE,
        "state": state,
        "beside": (
            ("← previous step", "[", rank, before),
            ("next step →", "]", rank, after),
            ("↑ lower rank", "-", below, step),
            ("higher rank ↓", "+", above, step),
        ),
        "lines": lines(
            asked,
            AnswerLine(
                command("ls", asked.url, "--rank", rank, "--step", step, "--tensors"),
                f"store.step({rank}, {step}).tensors()",
            ),
        ),
    }


def _calls(step: Step, pattern: str, stat: str) -> list[dict[str, Any]]:
    """Return the calls of operators: neighbours in the index with the same name.

    `turns_bad` is whether an output is bad and no input is, `value` the chosen statistic: the greatest of its
    outputs, or of its tensors if it has none.
    """
    rows = _rows(step, pattern)
    if not rows.size:
        return []
    tables = step.tables
    columns = [tables.label(name)[rows] for name in ("graph", "op_type", "op_name")]
    columns.append(tables.number("occurrence")[rows])
    io = tables.label("io")[rows]
    is_first = np.ones(rows.size, bool)
    is_first[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    starts = np.flatnonzero(is_first)
    lengths = np.diff(starts, append=rows.size)
    is_bad, is_output = _statistic(step, rows, "non_finite_count") > 0, io == "output"
    bad_in, bad_out, outputs = (
        np.add.reduceat(which.astype(np.int64), starts)
        for which in (is_bad & (io == "input"), is_bad & is_output, is_output)
    )
    is_shown = is_output | np.repeat(outputs == 0, lengths)
    values = np.fmax.reduceat(np.where(is_shown, _statistic(step, rows, stat), np.nan), starts)
    told = (starts, lengths, bad_in + bad_out > 0, (bad_out > 0) & (bad_in == 0), values)
    return [
        {
            "place": place,
            "tensors": [Tensor(step, row) for row in rows[start : start + length].tolist()],
            "is_bad": bad,
            "turns_bad": turns,
            "value": value,
        }
        for place, (start, length, bad, turns, value) in enumerate(
            zip(*(column.tolist() for column in told), strict=True)
        )
    ]


def _rows(step: Step, pattern: str) -> npt.NDArray[np.int64]:
    rows: Sequence[int] = step.rows()
    if pattern:
        matches = fits(pattern)
        rows = [row for row in rows if matches(Tensor(step, row).name)]
    return np.array(rows, np.int64)


def _statistic(step: Step, rows: npt.NDArray[np.int64], stat: str) -> npt.NDArray[np.float64]:
    total: npt.NDArray[np.float64] = np.sum(
        [step.tables.statistic(part)[rows] for part in parts_of(stat)], axis=0
    )
    return total


SCREEN = Endpoint(
    "cell",
    "Operators",
    (
        THE_RANK,
        THE_STEP,
        STAT,
        PATTERN,
        UrlParameter("bad", "boolean", "Only operators with NaN or Inf."),
        UrlParameter("page", "integer", "Which page of operators."),
    ),
    show,
    template="cell.html.j2",
)


#: How many of the greatest cells are listed.
_LISTED = 12
#: What should not be: it has a colour of its own.
_HOT = frozenset(["non_finite", "anomalous_tensors", "findings", "overflows", "problems", *ABOUT_NON_FINITE])


def show_matrix(asked: Asked) -> dict[str, Any]:
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
        "statistics": [name for name in STATISTICS if name not in SUMMARIES],
        "state": {name: asked.arguments.text(name) for name in ("stat", "name", "ranks", "steps")},
        "lines": lines(asked, _line(asked, whole, what)),
    }


def _worst(matrix: Matrix) -> list[tuple[int, int, float]]:
    values = np.where(np.isnan(matrix.values), -np.inf, matrix.values).T
    order = np.argsort(-values, axis=None, kind="stable")[:_LISTED]
    columns, rows = (places.tolist() for places in np.unravel_index(order, values.shape))
    return [
        (matrix.ranks[row][0], matrix.steps[column][0], float(values[column, row]))
        for row, column in zip(rows, columns, strict=True)
        if values[column, row] > 0
    ]


def _line(asked: Asked, whole: Matrix, what: str) -> AnswerLine:
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


MATRIX = Endpoint(
    "matrix", "Matrix", (STAT, PATTERN, RANKS, STEPS), show_matrix, reads_tensors, template="matrix.html.j2"
)
