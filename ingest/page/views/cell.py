"""One rank and step: its operators in order of execution."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.page.answers import PATTERN, STAT, THE_RANK, THE_STEP
from ingest.page.asking import AnswerLine, Asked, Screen, UrlParameter, around, lines
from ingest.page.cells import Scale, css_of, ribbon_picture
from ingest.page.rendering import counted
from ingest.questions.choosing import statistic_named
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from workers.arrays.aggregate import COUNTS, STATISTICS, parts_of
from workers.rules.names import fits

#: Operators of one page.
_PER_PAGE = 150


@dataclass(frozen=True, slots=True)
class _OperatorCall:
    """One call of an operator: neighbours in the index with the same name."""

    place: int
    op_type: str
    op_name: str
    tensors: Sequence[Tensor]
    bad: int
    """How many of its tensors hold NaN or Inf."""
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
    operators = _operators(opened, _rows(opened, arguments.text("name")), stat)
    if arguments.flag("bad"):
        operators = list(filter(_is_bad, operators))
    pages = max(-(-len(operators) // _PER_PAGE), 1)
    page = min(max(arguments.integer("page") or 1, 1), pages)
    scale, levels = _levels(operators, stat)
    state = {name: arguments.text(name) for name in ("stat", "name", "bad")}
    first_bad = next((operator for operator in operators if operator.turns_bad), None)

    def page_url(number: int) -> str:
        return asked.links.view("cell", rank=rank, step=step, **state, page=number if number > 1 else "")

    start = (page - 1) * _PER_PAGE
    return {
        "rank": rank,
        "step": step,
        "stat": stat,
        "statistics": STATISTICS,
        "value_of": value_of,
        "summary": opened.commit.summary,
        "operators": operators[start : start + _PER_PAGE],
        "colours": {of.place: css_of(level) for of, level in zip(operators, levels, strict=True)},
        "legend": _legend(scale, levels, stat),
        "total": len(operators),
        "bad_total": len(list(filter(_is_bad, operators))),
        "ribbon": ribbon_picture(
            levels,
            list(map(_is_bad, operators)),
            f"{counted(len(operators), 'operator')} in order of execution, coloured by {stat}",
        ),
        "first_bad": first_bad,
        "first_bad_url": _page_of(first_bad, operators, page_url),
        "page": page,
        "pages": pages,
        "per_page": _PER_PAGE,
        "page_url": page_url,
        "state": state,
        "neighbours": _neighbours(asked, rank, step),
        "lines": lines(
            asked,
            AnswerLine.of(
                ("ls", asked.url, "--rank", rank, "--step", step, "--tensors"),
                f"store.step({rank}, {step}).tensors()",
            ),
        ),
    }


def _is_bad(operator: _OperatorCall) -> bool:
    return operator.bad > 0


def _legend(scale: Scale | None, levels: Collection[int], stat: str) -> list[tuple[str, str]]:
    """Return the colours of a legend, by their classes, each with what it stands for."""
    zero = [("zero", "0")] if 0 in levels else []
    unknown = [("unknown", "not known")] if -1 in levels else []
    return zero + (scale.legend(is_count=stat in COUNTS) if scale is not None else []) + unknown


def _levels(operators: Sequence[_OperatorCall], stat: str) -> tuple[Scale | None, list[int]]:
    """Return the scale of all operators, None if all are 0 or unknown, and the level of each."""
    values = np.array([operator.value for operator in operators])
    scale = Scale.of(values, is_count=stat in COUNTS)
    return scale, np.where(np.isnan(values), -1, 0).tolist() if scale is None else scale.levels(
        values
    ).tolist()


def _rows(step: Step, pattern: str) -> npt.NDArray[np.int64]:
    """Return the rows of the tensors whose names fit a glob, (row,); of all tensors if it is empty."""
    rows = step.rows()
    if pattern:
        matches = fits(pattern)
        rows = [row for row in rows if matches(Tensor(step, row).name)]
    return np.array(rows, np.int64)


def _operators(step: Step, rows: npt.NDArray[np.int64], stat: str) -> list[_OperatorCall]:
    """Return the calls of operators that these rows of an index are, in order."""
    if not rows.size:
        return []
    tables = step.tables
    graph, op_type, op_name, io = (tables.label(name)[rows] for name in ("graph", "op_type", "op_name", "io"))
    calls = (graph, op_type, op_name, tables.number("occurrence")[rows])
    is_first = np.ones(rows.size, bool)
    is_first[1:] = np.any([column[1:] != column[:-1] for column in calls], axis=0)
    starts = np.flatnonzero(is_first)
    lengths = np.diff(starts, append=rows.size)
    is_output = io == "output"
    is_bad = _statistic(step, rows, "non_finite_count") > 0
    bad_in, bad_out, outputs = (
        np.add.reduceat(which.astype(np.int64), starts)
        for which in (is_bad & (io == "input"), is_bad & is_output, is_output)
    )
    is_shown = is_output | np.repeat(outputs == 0, lengths)
    values = np.fmax.reduceat(np.where(is_shown, _statistic(step, rows, stat), np.nan), starts)
    columns = (starts, lengths, bad_in, bad_out, values)
    return [
        _OperatorCall(
            place,
            op_type[start],
            op_name[start],
            [Tensor(step, row) for row in rows[start : start + length].tolist()],
            into + out,
            out > 0 and not into,
            value,
        )
        for place, (start, length, into, out, value) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    ]


def _statistic(step: Step, rows: npt.NDArray[np.int64], stat: str) -> npt.NDArray[np.float64]:
    """Return a statistic of rows, (row,); NaN if it is not known."""
    parts = [step.tables.statistic(part)[rows] for part in parts_of(stat)]
    total: npt.NDArray[np.float64] = np.sum(parts, axis=0)
    return total


def value_of(tensor: Tensor, stat: str) -> float:
    """Return a statistic of a tensor; NaN if it is not known."""
    return float(sum(getattr(tensor.statistics, part) for part in parts_of(stat)))


def _page_of(operator: _OperatorCall | None, operators: Sequence[_OperatorCall], page_url: Any) -> str:
    if operator is None:
        return ""
    place = next(number for number, other in enumerate(operators) if other is operator)
    return f"{page_url(place // _PER_PAGE + 1)}#op{operator.place}"


def _neighbours(asked: Asked, rank: int, step: int) -> dict[str, str]:
    """Return the URLs of the steps before and after, and of the ranks below and above, that are committed."""
    before, after = around(step, asked.moment.steps_of(rank))
    below, above = around(rank, asked.moment.ranks_with(step))
    near = {
        "previous step": (rank, before),
        "next step": (rank, after),
        "lower rank": (below, step),
        "higher rank": (above, step),
    }
    state = {name: asked.arguments.text(name) for name in ("stat", "name", "bad")}
    return {
        words: asked.links.view("cell", rank=place[0], step=place[1], **state)
        for words, place in near.items()
        if None not in place
    }


SCREEN = Screen(
    "cell",
    "Operators",
    "cell.html.j2",
    (
        THE_RANK,
        THE_STEP,
        STAT,
        PATTERN,
        UrlParameter("bad", "boolean", "Only operators with NaN or Inf."),
        UrlParameter("page", "integer", "Which page of operators."),
    ),
    show,
)
