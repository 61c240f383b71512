"""What the HTTP API answers: the same JSON as that of the commands with `--json`; and its description."""

from __future__ import annotations

from typing import Any

from ingest.findings.anomalies import anomalies
from ingest.page.asking import Arguments, Asked, Endpoint, UrlParameter, matrix_asked, tensor_of
from ingest.page.questions import ASKED, RANK, STEP, question_endpoint
from ingest.page.sheet import window
from ingest.questions.choosing import statistic_named
from ingest.questions.compare import compare
from ingest.questions.growth import error_growth
from ingest.questions.matrix import MOST_CELLS, SUMMARIES, parse_cells, value_rows
from ingest.reader.rows import step_row
from ingest.reader.shown import shown_tensor
from workers import __version__

THE_RANK = UrlParameter("rank", "integer", "The rank.", is_required=True)
THE_STEP = UrlParameter("step", "integer", "The step.", is_required=True)
STAT = UrlParameter("stat", "string", "A statistic, as for `dump-ingest heatmap --stat`.")
PATTERN = UrlParameter("name", "string", "A glob over the names of tensors.")
SEVERITY = UrlParameter("severity", "string", "The mildest severity.")
RANKS = UrlParameter("ranks", "string", "Only these ranks, such as 0-63.")
STEPS = UrlParameter("steps", "string", "Only these steps, such as 10-20.")
THE_TENSOR = (
    THE_RANK,
    UrlParameter("step", "integer", "The step; without it, a tensor that belongs to no step."),
    UrlParameter("name", "string", "The name of the tensor.", is_required=True),
    UrlParameter("graph", "string", "The graph, if several graphs have a tensor of that name."),
)
#: The parameter that names another run.
BESIDE = "with"
THE_OTHER = UrlParameter(BESIDE, "string", "The other run, which is the reference.", is_required=True)
#: The parameters of a window, all numbers.
_WINDOW = {
    "row": "The first row; 0 if left out.",
    "column": "The first column; 0 if left out.",
    "rows": "How many rows; 20 if left out.",
    "columns": "How many columns; 10 if left out.",
}


def _steps(asked: Asked) -> list[dict[str, Any]]:
    rank, step = asked.arguments.integer("rank"), asked.arguments.integer("step")
    return [
        step_row(opened)
        for opened in asked.moment.steps
        if rank in (None, opened.key.rank) and step in (None, opened.key.step)
    ]


def _tensors(asked: Asked) -> list[dict[str, Any]]:
    opened = asked.moment.opened(asked.arguments.need("rank"), asked.arguments.integer("step"))
    return [tensor.to_dict() for tensor in opened.tensors()]


def _findings(asked: Asked) -> list[dict[str, Any]]:
    given = asked.arguments
    chosen = {name: given.text(name) or None for name in ("rule", "severity")}
    answer = anomalies(asked.moment.store, given.integer("rank"), given.integer("step"), **chosen)
    return [finding.to_dict() for finding in answer.findings]


def _rank_values(asked: Asked) -> list[dict[str, Any]]:
    statistic = statistic_named(asked.arguments.text("stat", "l2_norm"))
    return value_rows(asked.moment.statistic(asked.arguments.text("name", "*"), statistic), statistic)


def _matrix(asked: Asked) -> dict[str, Any]:
    cells = asked.arguments.text("cells")
    most = parse_cells(cells) if cells else MOST_CELLS
    return matrix_asked(asked.moment, asked.arguments).binned(*most).to_dict()


def _incidents(asked: Asked) -> list[dict[str, Any]]:
    given = asked.arguments
    answer = asked.moment.incidents(
        given.integer("rank"),
        given.integer("step"),
        severity=given.text("severity") or None,
        incident=given.text("id"),
    )
    return [incident.to_dict() for incident in answer.incidents]


def _values(asked: Asked) -> dict[str, Any]:
    given = asked.arguments
    numbers = {name: number for name in _WINDOW if (number := given.integer(name))}
    return window(tensor_of(asked.moment, given), **numbers)


def _tensor(asked: Asked) -> dict[str, Any]:
    given = asked.arguments
    return shown_tensor(asked.moment.store, tensor_of(asked.moment, given), at=given.text("at") or None)


def _comparison(asked: Asked) -> dict[str, Any]:
    given = asked.arguments
    return compare(
        *sides_of(asked, given.text(BESIDE), given.integer("rank"), given.integer("step")),
        storage_options=storage_options(asked),
        include_partial=given.flag("partial"),
        elements=not given.flag("no_elements"),
    ).to_dict()


def _growth(asked: Asked) -> list[dict[str, Any]]:
    given = asked.arguments
    its = asked.moment_of(given.text(BESIDE)).store
    stat, name = given.text("stat", "l2_norm"), given.text("name", "*")
    return error_growth(asked.moment.store, its, given.need("rank"), stat, name=name).rows()


def sides_of(asked: Asked, other: str, rank: int | None, step: int | None) -> tuple[str, str]:
    """Return a run and another one, or a rank and step of both, as `compare` takes them.

    Raises:
        UsageError: the run does not exist.
    """
    chosen = [f"{name}={number}" for name, number in (("rank", rank), ("step", step)) if number is not None]
    place = f"@{','.join(chosen)}" if chosen else ""
    return f"{asked.url}{place}", f"{asked.moment_of(other).store.url}{place}"


def storage_options(asked: Asked) -> dict[str, Any]:
    """Return the options with which the stores are opened."""
    return dict(asked.library.options) if asked.library is not None else {}


def reads_tensors(asked: Arguments) -> bool:
    """Return whether a matrix is about a statistic of tensors: the commits do not have that."""
    return asked.text("stat", "non_finite") not in SUMMARIES


def _always(_: Arguments) -> bool:
    return True


ENDPOINTS = (
    Endpoint(
        "incidents",
        "What went wrong, once for each cause; the worst first.",
        (RANK, STEP, SEVERITY, UrlParameter("id", "string", "Only the incident with this id.")),
        _incidents,
        command="anomalies --json",
    ),
    Endpoint(
        "values",
        "A window on the values of a tensor, seen as a table: its last axis across, the others down.",
        (*THE_TENSOR, *(UrlParameter(name, "integer", words) for name, words in _WINDOW.items())),
        _values,
        command="show --window --json",
    ),
    Endpoint(
        "tensor",
        "All that is known of one tensor.",
        (*THE_TENSOR, UrlParameter("at", "string", "An index, such as `3:5,:`, whose values are wanted.")),
        _tensor,
        command="show --json",
    ),
    Endpoint(
        "comparison",
        "A run, or a rank and step of it, against those of another run.",
        (
            THE_OTHER,
            RANK,
            STEP,
            UrlParameter("partial", "boolean", "Also compare steps with quarantined or missing files."),
            UrlParameter("no_elements", "boolean", "Judge what digests do not decide by statistics alone."),
        ),
        _comparison,
        _always,
        "compare --json",
    ),
    Endpoint(
        "growth",
        "How far a rank is from that of another run, by tensor and step: the relative error of a statistic.",
        (THE_OTHER, THE_RANK, STAT, PATTERN),
        _growth,
        _always,
        "compare --over-steps --json",
    ),
    Endpoint("steps", "The committed steps.", (RANK, STEP), _steps, command="ls --json"),
    Endpoint(
        "tensors",
        "The tensors of one step of one rank, in order of execution.",
        (THE_RANK, STEP),
        _tensors,
        command="ls --tensors --json",
    ),
    Endpoint(
        "findings",
        "What rules have found, the worst first.",
        (RANK, STEP, UrlParameter("rule", "string", "Only this rule, or a glob."), SEVERITY),
        _findings,
        command="anomalies --findings --json",
    ),
    Endpoint(
        "rank_values",
        "A statistic of tensors over ranks and steps, and nothing else.",
        (PATTERN, STAT),
        _rank_values,
        _always,
        "heatmap --values-only --json",
    ),
    Endpoint(
        "matrix",
        "A count of commits or a statistic of tensors over ranks and steps, put together to cells, each the "
        "worst of its ranks and steps. `ranks` and `steps` are the first and last of each row and column; "
        "`state` is 0 for missing, 1 for complete, 2 for partial, 3 for damaged; `missing` counts.",
        (
            UrlParameter("stat", "string", "As for `heatmap --cells --stat`; non_finite if left out."),
            PATTERN,
            RANKS,
            STEPS,
            UrlParameter("cells", "string", "The most rows and columns; 88x240 if left out."),
        ),
        _matrix,
        reads_tensors,
        "heatmap --cells --json",
    ),
    *map(question_endpoint, ASKED),
)


_RUN_PARAMETER = {
    "name": "run",
    "in": "path",
    "required": True,
    "description": "A name from /api/v1/runs.",
    "schema": {"type": "string"},
}
_WATCHERS_PARAMETER = {
    "name": "watchers",
    "in": "query",
    "required": False,
    "description": "Whether the token changes with the watchers, too.",
    "schema": {"type": "boolean"},
}
_JSON: dict[str, Any] = {"application/json": {"schema": {}}}
_ERROR = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {
                "error": {
                    "type": "object",
                    "properties": {"message": {"type": "string"}, "hint": {"type": "string"}},
                }
            },
        }
    }
}
_FAILURES = {
    "401": "A token is missing.",
    "404": "The run, rank, step or parameter does not exist.",
    "422": "What was asked for is damaged.",
    "503": "The store does not answer.",
}


def document(base: str) -> dict[str, Any]:
    """Return the OpenAPI document of a server with this base path."""
    paths = {
        "/api/v1/runs": _described_path(
            "All runs: ranks, steps, the last step, when it was committed, and the rules of the highest "
            "severity that fired in the newest `examined_steps`; none of this of a run that is being read.",
            "",
            [],
        ),
        "/api/v1/moment": _described_path(
            "What the list of runs says now, as a token that changes with it.", "", []
        ),
        "/api/v1/runs/{run}/moment": _described_path(
            "What is committed now, as a token that changes with it; and whether the store answers.",
            "ls --token --json",
            [_RUN_PARAMETER, _WATCHERS_PARAMETER],
        ),
        "/api/v1/runs/{run}/watchers": _described_path(
            "What the watchers of the run say of themselves: lag and backlog of each rank, the disk of the "
            "dump, and what each step waits for. `steps` is as `watch --explain --from URL --json` prints "
            "it, without the steps that are settled.",
            "ls --watchers --json",
            [_RUN_PARAMETER],
        ),
    }
    for question in ENDPOINTS:
        paths[f"/api/v1/runs/{{run}}/{question.name}"] = _described_path(
            question.words, question.command, [_RUN_PARAMETER, *_described_parameters(question)]
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dump-ingest page",
            "version": __version__,
            "description": "Read-only. Numbers that are NaN or infinite are null.",
        },
        "servers": [{"url": base or "/"}],
        "paths": paths,
    }


def _described_path(words: str, command: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    same = f" The same JSON as `dump-ingest {command}`." if command else ""
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": _JSON}}
    responses |= {code: {"description": why, "content": _ERROR} for code, why in _FAILURES.items()}
    return {
        "get": {
            "summary": words,
            "description": f"{words}{same}",
            "parameters": parameters,
            "responses": responses,
        }
    }


def _described_parameters(question: Endpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": parameter.name,
            "in": "query",
            "required": parameter.is_required,
            "description": parameter.words,
            "schema": {"type": parameter.kind},
        }
        for parameter in question.parameters
    ]
