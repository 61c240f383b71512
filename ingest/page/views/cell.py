"""One rank and step: its operators in order of execution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.page.asking import (
    PATTERN,
    STAT,
    THE_RANK,
    THE_STEP,
    AnswerLine,
    Asked,
    Endpoint,
    UrlParameter,
    around,
    lines,
)
from ingest.page.charts import css_of, level_legend, levels_of, ribbon_picture
from ingest.page.rendering import command, counted
from ingest.questions.choosing import statistic_named
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from workers.arrays.statistics import COUNTS, STATISTICS, parts_of
from workers.rules.names import fits

#: Operators of one page.
_PER_PAGE = 150


@dataclass(frozen=True, slots=True)
class _OperatorCall:
    """One call of an operator: neighbours in the index with the same name."""

    place: int
    tensors: list[Tensor]
    is_bad: bool
    """Whether any of its tensors holds NaN or Inf."""
    turns_bad: bool
    """Whether an output is bad and no input is."""
    value: float
    """The chosen statistic: the greatest of its outputs, or of its tensors if it has none."""


def show(asked: Asked) -> dict[str, Any]:
    """Return a ribbon of all operators, and those of one page."""
    arguments = asked.arguments
    rank, step = arguments.need("rank"), arguments.need("step")
    stat = statistic_named(arguments.text("stat", "l2_norm"))
    opened = asked.moment.opened(rank, step)
    calls = _calls(opened, arguments.text("name"), stat)
    bad = [call.is_bad for call in calls]
    if arguments.flag("bad"):
        calls, bad = list(compress(calls, bad)), list(filter(None, bad))
    pages = max(-(-len(calls) // _PER_PAGE), 1)
    page = min(max(arguments.integer("page") or 1, 1), pages)
    values = np.array([call.value for call in calls])
    levels = levels_of(values, is_count=stat in COUNTS).tolist()
    shown = slice((page - 1) * _PER_PAGE, page * _PER_PAGE)
    state = {name: arguments.text(name) for name in ("stat", "name", "bad")}
    before, after = around(step, asked.moment.steps_of(rank))
    below, above = around(rank, asked.moment.ranks_with(step))
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
        "first_bad": _first_bad(calls),
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


def _first_bad(calls: Sequence[_OperatorCall]) -> list[tuple[_OperatorCall, int]]:
    """Return the first call that turns bad, and the page that it is on, if there is one."""
    bad = ((call, place // _PER_PAGE + 1) for place, call in enumerate(calls) if call.turns_bad)
    return list(islice(bad, 1))


def _calls(step: Step, pattern: str, stat: str) -> list[_OperatorCall]:
    """Return the calls of operators, in order; those of tensors whose names fit a glob if there is one."""
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
        _OperatorCall(
            place, [Tensor(step, row) for row in rows[start : start + length].tolist()], bad, turns, value
        )
        for place, (start, length, bad, turns, value) in enumerate(
            zip(*(column.tolist() for column in told), strict=True)
        )
    ]


def _rows(step: Step, pattern: str) -> npt.NDArray[np.int64]:
    """Return the rows of the tensors whose names fit a glob, (row,); of all tensors if it is empty."""
    rows: Sequence[int] = step.rows()
    if pattern:
        matches = fits(pattern)
        rows = [row for row in rows if matches(Tensor(step, row).name)]
    return np.array(rows, np.int64)


def _statistic(step: Step, rows: npt.NDArray[np.int64], stat: str) -> npt.NDArray[np.float64]:
    """Return a statistic of rows, (row,); NaN if it is not known."""
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
