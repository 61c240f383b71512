"""One rank and step: its operators in order of execution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ingest.page.answers import PATTERN, STAT, THE_RANK, THE_STEP
from ingest.page.arguments import Parameter
from ingest.page.drawing.ribbon import ribbon_picture
from ingest.page.drawing.scale import Scale
from ingest.page.screen import Asked, Screen, lines
from ingest.questions.trend import COUNTS, STATISTICS, SUMS, statistic_named
from ingest.reader.tensor import Tensor
from workers.rules.names import fits

#: Operators of one page.
_PER_PAGE = 150


@dataclass(frozen=True, slots=True)
class _Operator:
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
    matches = fits(arguments.text("name", "*"))
    tensors = [tensor for tensor in opened.tensors() if matches(tensor.name)]
    operators = _operators(tensors, stat)
    if arguments.flag("bad"):
        operators = [operator for operator in operators if operator.bad]
    page = max(arguments.integer("page") or 1, 1)
    pages = max(-(-len(operators) // _PER_PAGE), 1)
    page = min(page, pages)
    values = np.array([operator.value for operator in operators])
    scale = Scale.of(values, is_count=stat in COUNTS)
    levels = scale.levels(values).tolist() if scale else [0] * len(operators)
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
        "levels": dict(zip((operator.place for operator in operators), levels, strict=True)),
        "total": len(operators),
        "bad_total": sum(operator.bad > 0 for operator in operators),
        "ribbon": ribbon_picture(
            levels,
            [operator.bad > 0 for operator in operators],
            f"{len(operators)} operators in order of execution, coloured by {stat}",
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
            ("ls", asked.url, "--rank", rank, "--step", step, "--tensors"),
            f"store.step({rank}, {step}).tensors()",
        ),
    }


def _operators(tensors: Sequence[Tensor], stat: str) -> list[_Operator]:
    grouped = groupby(
        tensors, key=lambda tensor: (tensor.graph, tensor.op_type, tensor.op_name, tensor.occurrence)
    )
    operators = []
    for place, ((_, op_type, op_name, _), members) in enumerate(grouped):
        of_call = list(members)
        bad_in = [tensor for tensor in of_call if _is_bad(tensor) and tensor.io == "input"]
        bad_out = [tensor for tensor in of_call if _is_bad(tensor) and tensor.io == "output"]
        outputs = [tensor for tensor in of_call if tensor.io == "output"] or of_call
        known = [value for value in (value_of(tensor, stat) for tensor in outputs) if not math.isnan(value)]
        operators.append(
            _Operator(
                place,
                op_type,
                op_name,
                of_call,
                len(bad_in) + len(bad_out),
                bool(bad_out) and not bad_in,
                max(known, default=float("nan")),
            )
        )
    return operators


def value_of(tensor: Tensor, stat: str) -> float:
    """Return a statistic of a tensor; NaN if it is not known."""
    return float(sum(getattr(tensor.statistics, part) for part in SUMS.get(stat, (stat,))))


def _is_bad(tensor: Tensor) -> bool:
    return value_of(tensor, "non_finite_count") > 0


def _page_of(operator: _Operator | None, operators: Sequence[_Operator], page_url: Any) -> str:
    if operator is None:
        return ""
    place = next(number for number, other in enumerate(operators) if other is operator)
    return f"{page_url(place // _PER_PAGE + 1)}#op{operator.place}"


def _neighbours(asked: Asked, rank: int, step: int) -> dict[str, str]:
    """Return the URLs of the steps before and after, and of the ranks below and above."""
    ranks, steps = asked.moment.ranks, asked.moment.numbers
    committed = {(opened.key.rank, opened.key.step) for opened in asked.moment.steps}
    near = {
        "previous step": (rank, _beside(steps, step, -1)),
        "next step": (rank, _beside(steps, step, 1)),
        "lower rank": (_beside(ranks, rank, -1), step),
        "higher rank": (_beside(ranks, rank, 1), step),
    }
    state = {name: asked.arguments.text(name) for name in ("stat", "name", "bad")}
    return {
        words: asked.links.view("cell", rank=place[0], step=place[1], **state)
        for words, place in near.items()
        if place in committed
    }


def _beside(numbers: Sequence[int], number: int, by: int) -> int | None:
    place = numbers.index(number) + by if number in numbers else -1
    return numbers[place] if 0 <= place < len(numbers) else None


SCREEN = Screen(
    "cell",
    "Operators",
    "cell.html.j2",
    (
        THE_RANK,
        THE_STEP,
        STAT,
        PATTERN,
        Parameter("bad", "boolean", "Only operators with NaN or Inf."),
        Parameter("page", "integer", "Which page of operators."),
    ),
    show,
)
