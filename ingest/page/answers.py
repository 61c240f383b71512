"""What the HTTP API answers: the same JSON as that of the commands with `--json`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ingest.findings.anomalies import anomalies
from ingest.findings.incidents import incidents
from ingest.page.arguments import Arguments, Parameter
from ingest.page.choice import tensor_of
from ingest.page.matrix import matrix_of, parse_range
from ingest.page.moment import Moment
from ingest.page.sheet import window
from ingest.questions.heatmap_rows import heatmap_rows
from ingest.questions.origin import origin
from ingest.questions.trend import heatmap
from ingest.reader.rows import step_row

RANK = Parameter("rank", "integer", "Only this rank.")
STEP = Parameter("step", "integer", "Only this step.")
THE_RANK = Parameter("rank", "integer", "The rank.", is_required=True)
THE_STEP = Parameter("step", "integer", "The step.", is_required=True)
STAT = Parameter("stat", "string", "A statistic, as for `dump-ingest heatmap --stat`.")
PATTERN = Parameter("name", "string", "A glob over the names of tensors.")
RANKS = Parameter("ranks", "string", "Only these ranks, such as 0-63.")
STEPS = Parameter("steps", "string", "Only these steps, such as 10-20.")
THE_TENSOR = (
    Parameter("step", "integer", "The step; without it, a tensor that belongs to no step."),
    Parameter("name", "string", "The name of the tensor.", is_required=True),
    Parameter("graph", "string", "The graph, if several graphs have a tensor of that name."),
)
#: What a picture of a matrix has at most.
MATRIX_ROWS, MATRIX_COLUMNS = 88, 240


@dataclass(frozen=True, slots=True)
class Question:
    """One path below `/api/v1/runs/{run}/`."""

    name: str
    words: str
    command: str
    """The command that prints the same; "" if there is none."""
    parameters: tuple[Parameter, ...]
    answer: Callable[[Moment, Arguments], Any]


def _steps(moment: Moment, asked: Arguments) -> list[dict[str, Any]]:
    rank, step = asked.integer("rank"), asked.integer("step")
    return [
        step_row(opened)
        for opened in moment.steps
        if rank in (None, opened.key.rank) and step in (None, opened.key.step)
    ]


def _tensors(moment: Moment, asked: Arguments) -> list[dict[str, Any]]:
    opened = moment.opened(asked.need("rank"), asked.integer("step"))
    return [tensor.to_dict() for tensor in opened.tensors()]


def _findings(moment: Moment, asked: Arguments) -> list[dict[str, Any]]:
    rule, severity = asked.text("rule") or None, asked.text("severity") or None
    answer = anomalies(
        moment.store, asked.integer("rank"), asked.integer("step"), rule=rule, severity=severity
    )
    return [finding.to_dict() for finding in answer.findings]


def _origin(moment: Moment, asked: Arguments) -> dict[str, Any]:
    return origin(
        moment.store, asked.integer("rank"), asked.integer("step"), cause=asked.text("cause", "auto")
    ).to_dict()


def _heatmap(moment: Moment, asked: Arguments) -> list[dict[str, Any]]:
    field = heatmap(moment.store, asked.text("name", "*"), asked.text("stat", "l2_norm"))
    return heatmap_rows(field)


def _matrix(moment: Moment, asked: Arguments) -> dict[str, Any]:
    ranks = parse_range(asked.text("ranks"), moment.ranks, "ranks")
    steps = parse_range(asked.text("steps"), moment.numbers, "steps")
    whole = matrix_of(moment, asked.text("stat", "non_finite"), asked.text("name", "*"), ranks, steps)
    return whole.binned(MATRIX_ROWS, MATRIX_COLUMNS).to_dict()


def _incidents(moment: Moment, asked: Arguments) -> list[dict[str, Any]]:
    answer = incidents(
        moment.store,
        asked.integer("rank"),
        asked.integer("step"),
        severity=asked.text("severity") or None,
    )
    return [incident.to_dict() for incident in answer.incidents]


def _values(moment: Moment, asked: Arguments) -> dict[str, Any]:
    numbers = {name: asked.integer(name) for name in ("row", "column", "rows", "columns")}
    return window(
        tensor_of(moment, asked),
        numbers["row"] or 0,
        numbers["column"] or 0,
        numbers["rows"] or 20,
        numbers["columns"] or 10,
    )


QUESTIONS = (
    Question(
        "incidents",
        "What went wrong, once for each cause; the worst first.",
        "anomalies --json",
        (RANK, STEP, Parameter("severity", "string", "The mildest severity.")),
        _incidents,
    ),
    Question(
        "values",
        "A window on the values of a tensor, seen as a table: its last axis across, the others down.",
        "",
        (
            THE_RANK,
            *THE_TENSOR,
            Parameter("row", "integer", "The first row; 0 if left out."),
            Parameter("column", "integer", "The first column; 0 if left out."),
            Parameter("rows", "integer", "How many rows; 20 if left out."),
            Parameter("columns", "integer", "How many columns; 10 if left out."),
        ),
        _values,
    ),
    Question("steps", "The committed steps.", "ls --json", (RANK, STEP), _steps),
    Question(
        "tensors",
        "The tensors of one step of one rank, in order of execution.",
        "ls --tensors --json",
        (THE_RANK, STEP),
        _tensors,
    ),
    Question(
        "findings",
        "What rules have found, the worst first.",
        "anomalies --findings --json",
        (
            RANK,
            STEP,
            Parameter("rule", "string", "Only this rule, or a glob."),
            Parameter("severity", "string", "The mildest severity."),
        ),
        _findings,
    ),
    Question(
        "origin",
        "The first operator that produced NaN or Inf from clean inputs.",
        "origin --json",
        (RANK, STEP, Parameter("cause", "string", "nan, inf, overflow or auto.")),
        _origin,
    ),
    Question(
        "heatmap",
        "A statistic of tensors over ranks and steps.",
        "heatmap --json",
        (PATTERN, STAT),
        _heatmap,
    ),
    Question(
        "matrix",
        "A statistic or a count over ranks and steps, aggregated to the cells of the picture.",
        "",
        (STAT, PATTERN, RANKS, STEPS),
        _matrix,
    ),
)
