"""What the HTTP API answers: the same JSON as that of the commands with `--json`; and its description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ingest.findings.anomalies import anomalies
from ingest.page.asking import TRUE, Arguments, Asked, Kind, UrlParameter, matrix_asked, tensor_of
from ingest.page.sheet import window
from ingest.questions import QUESTIONS
from ingest.questions.choosing import statistic_named
from ingest.questions.compare import compare
from ingest.questions.compare.growth import error_growth
from ingest.questions.divergence import divergence
from ingest.questions.matrix import MOST_CELLS, SUMMARIES, parse_cells, value_rows
from ingest.questions.origin import origin
from ingest.questions.placement.within import layout
from ingest.questions.question import CONDITIONS, Parameter, question_named
from ingest.reader.rows import step_row
from ingest.reader.shown import shown_tensor
from workers import __version__
from workers.errors import UsageError

RANK = UrlParameter("rank", "integer", "Only this rank.")
STEP = UrlParameter("step", "integer", "Only this step.")
THE_RANK = UrlParameter("rank", "integer", "The rank.", is_required=True)
THE_STEP = UrlParameter("step", "integer", "The step.", is_required=True)
STAT = UrlParameter("stat", "string", "A statistic, as for `dump-ingest heatmap --stat`.")
PATTERN = UrlParameter("name", "string", "A glob over the names of tensors.")
RANKS = UrlParameter("ranks", "string", "Only these ranks, such as 0-63.")
STEPS = UrlParameter("steps", "string", "Only these steps, such as 10-20.")
THE_TENSOR = (
    UrlParameter("step", "integer", "The step; without it, a tensor that belongs to no step."),
    UrlParameter("name", "string", "The name of the tensor.", is_required=True),
    UrlParameter("graph", "string", "The graph, if several graphs have a tensor of that name."),
)
#: The parameter that names another run.
BESIDE = "with"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path below `/api/v1/runs/{run}/`."""

    name: str
    words: str
    command: str
    """The command that prints the same; "" if there is none."""
    parameters: tuple[UrlParameter, ...]
    answer: Callable[[Asked], Any]
    is_slow: Callable[[Arguments], bool] = lambda _: False
    """As for a screen."""


def _steps(asked: Asked) -> list[dict[str, Any]]:
    moment, given = asked.moment, asked.arguments
    rank, step = given.integer("rank"), given.integer("step")
    return [
        step_row(opened)
        for opened in moment.steps
        if rank in (None, opened.key.rank) and step in (None, opened.key.step)
    ]


def _tensors(asked: Asked) -> list[dict[str, Any]]:
    moment, given = asked.moment, asked.arguments
    opened = moment.opened(given.need("rank"), given.integer("step"))
    return [tensor.to_dict() for tensor in opened.tensors()]


def _findings(asked: Asked) -> list[dict[str, Any]]:
    moment, given = asked.moment, asked.arguments
    rule, severity = given.text("rule") or None, given.text("severity") or None
    answer = anomalies(
        moment.store, given.integer("rank"), given.integer("step"), rule=rule, severity=severity
    )
    return [finding.to_dict() for finding in answer.findings]


def _origin(asked: Asked) -> dict[str, Any]:
    moment, given = asked.moment, asked.arguments
    return origin(
        moment.store, given.integer("rank"), given.integer("step"), cause=given.text("cause", "auto")
    ).to_dict()


def _rank_values(asked: Asked) -> list[dict[str, Any]]:
    moment, given = asked.moment, asked.arguments
    statistic = statistic_named(given.text("stat", "l2_norm"))
    by_step = moment.fields.of(moment.snapshot, moment.generations, given.text("name", "*"), statistic)
    return value_rows({step: known.of_ranks for step, known in by_step.items()}, statistic)


def _matrix(asked: Asked) -> dict[str, Any]:
    cells = asked.arguments.text("cells")
    most = parse_cells(cells) if cells else MOST_CELLS
    return matrix_asked(asked.moment, asked.arguments).binned(*most).to_dict()


def _incidents(asked: Asked) -> list[dict[str, Any]]:
    moment, given = asked.moment, asked.arguments
    answer = moment.incidents(
        given.integer("rank"),
        given.integer("step"),
        severity=given.text("severity") or None,
        incident=given.text("id"),
    )
    return [incident.to_dict() for incident in answer.incidents]


def _values(asked: Asked) -> dict[str, Any]:
    moment, given = asked.moment, asked.arguments
    numbers = {name: given.integer(name) for name in ("row", "column", "rows", "columns")}
    return window(tensor_of(moment, given), **{name: number for name, number in numbers.items() if number})


def _tensor(asked: Asked) -> dict[str, Any]:
    moment, given = asked.moment, asked.arguments
    return shown_tensor(moment.store, tensor_of(moment, given), at=given.text("at") or None)


def _comparison(asked: Asked) -> dict[str, Any]:
    given = asked.arguments
    sides = sides_of(asked, given.text("with"), given.integer("rank"), given.integer("step"))
    return compare(
        *sides,
        storage_options=asked.storage_options(),
        include_partial=given.flag("partial"),
        elements=not given.flag("no_elements"),
    ).to_dict()


def _always(_: Arguments) -> bool:
    return True


def _is_of_many_steps(asked: Arguments) -> bool:
    return asked.integer("rank") is None or asked.integer("step") is None


def reads_tensors(asked: Arguments) -> bool:
    """Return whether a matrix is about a statistic of tensors: the commits do not have that."""
    return asked.text("stat", "non_finite") not in SUMMARIES


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


def _endpoint_of(name: str) -> Endpoint:
    """Return the path of a question: its parameters, except that the page takes partial steps, too."""
    question = question_named(name)
    told = {each.name: each for each in question.parameters}
    has_partial = told.pop("include_partial", None) is not None
    if told.pop("pattern", None) is not None:
        told.setdefault("name", Parameter("name", CONDITIONS["name"], None))
    known = {"rank": RANK, "step": STEP}

    def answer(asked: Asked) -> Any:
        given = {each: _read(told[each], text) for each, text in asked.arguments.given.items()}
        if has_partial:
            given["include_partial"] = True
        question.check(given)
        return question.answered(asked.moment.store, given).to_json()

    return Endpoint(
        name,
        f"{QUESTIONS[name].summary}",
        f"{name} {'--include-partial ' * has_partial}--json",
        tuple(
            known.get(each, UrlParameter(each, _kind_of(told[each]), told[each].option.words))
            for each in told
        ),
        answer,
        _is_of_many_steps,
    )


def _kind_of(parameter: Parameter) -> Kind:
    if isinstance(parameter.default, bool):
        return "boolean"
    is_number = parameter.option.kind is int and not parameter.option.is_several
    return "integer" if is_number else "string"


def _read(parameter: Parameter, text: str) -> Any:
    """Return the value of a parameter; of one that a command repeats, those between commas.

    Raises:
        UsageError: it is not such a value.
    """
    option = parameter.option
    if isinstance(parameter.default, bool):
        return text in TRUE
    try:
        return [option.kind(part) for part in text.split(",")] if option.is_several else option.kind(text)
    except ValueError as exc:
        raise UsageError(f"{parameter.name}: {text[:80]!r} is not understood") from exc


ENDPOINTS = (
    Endpoint(
        "incidents",
        "What went wrong, once for each cause; the worst first.",
        "anomalies --json",
        (
            RANK,
            STEP,
            UrlParameter("severity", "string", "The mildest severity."),
            UrlParameter("id", "string", "Only the incident with this id."),
        ),
        _incidents,
    ),
    Endpoint(
        "values",
        "A window on the values of a tensor, seen as a table: its last axis across, the others down.",
        "show --window --json",
        (
            THE_RANK,
            *THE_TENSOR,
            UrlParameter("row", "integer", "The first row; 0 if left out."),
            UrlParameter("column", "integer", "The first column; 0 if left out."),
            UrlParameter("rows", "integer", "How many rows; 20 if left out."),
            UrlParameter("columns", "integer", "How many columns; 10 if left out."),
        ),
        _values,
    ),
    Endpoint(
        "tensor",
        "All that is known of one tensor.",
        "show --json",
        (
            THE_RANK,
            *THE_TENSOR,
            UrlParameter("at", "string", "An index, such as `3:5,:`, whose values are wanted."),
        ),
        _tensor,
    ),
    Endpoint(
        "comparison",
        "A run, or a rank and step of it, against those of another run.",
        "compare --json",
        (
            UrlParameter(BESIDE, "string", "The other run, which is the reference.", is_required=True),
            RANK,
            STEP,
            UrlParameter("partial", "boolean", "Also compare steps with quarantined or missing files."),
            UrlParameter("no_elements", "boolean", "Judge what digests do not decide by statistics alone."),
        ),
        _comparison,
        _always,
    ),
    Endpoint(
        "growth",
        "How far a rank is from that of another run, by tensor and step: the relative error of a statistic.",
        "compare --over-steps --json",
        (
            UrlParameter(BESIDE, "string", "The other run, which is the reference.", is_required=True),
            THE_RANK,
            STAT,
            PATTERN,
        ),
        _growth,
        _always,
    ),
    Endpoint("steps", "The committed steps.", "ls --json", (RANK, STEP), _steps),
    Endpoint(
        "tensors",
        "The tensors of one step of one rank, in order of execution.",
        "ls --tensors --json",
        (THE_RANK, STEP),
        _tensors,
    ),
    Endpoint(
        "findings",
        "What rules have found, the worst first.",
        "anomalies --findings --json",
        (
            RANK,
            STEP,
            UrlParameter("rule", "string", "Only this rule, or a glob."),
            UrlParameter("severity", "string", "The mildest severity."),
        ),
        _findings,
    ),
    Endpoint(
        "origin",
        "The first operator that produced NaN or Inf from clean inputs.",
        "origin --json",
        (RANK, STEP, UrlParameter("cause", "string", "nan, inf, overflow or auto.")),
        _origin,
    ),
    Endpoint(
        "divergence",
        "Where replicas stop agreeing: the first step and tensor, and the odd rank.",
        "divergence --include-partial --json",
        (STEP,),
        lambda asked: divergence(
            asked.moment.store, step=asked.arguments.integer("step"), include_partial=True
        ).to_dict(),
        _always,
    ),
    Endpoint(
        "layout",
        "How ranks hold the tensors of a step or of all, and what looks like a mistake.",
        "layout --include-partial --json",
        (STEP,),
        lambda asked: layout(
            asked.moment.store, asked.arguments.integer("step"), include_partial=True
        ).to_dict(),
        _always,
    ),
    Endpoint(
        "rank_values",
        "A statistic of tensors over ranks and steps, and nothing else.",
        "heatmap --values-only --json",
        (PATTERN, STAT),
        _rank_values,
        _always,
    ),
    Endpoint(
        "matrix",
        "A count of commits or a statistic of tensors over ranks and steps, put together to cells, each the "
        "worst of its ranks and steps. `ranks` and `steps` are the first and last of each row and column; "
        "`state` is 0 for missing, 1 for complete, 2 for partial, 3 for damaged; `missing` counts.",
        "heatmap --cells --json",
        (
            UrlParameter("stat", "string", "As for `heatmap --cells --stat`; non_finite if left out."),
            PATTERN,
            RANKS,
            STEPS,
            UrlParameter("cells", "string", "The most rows and columns; 88x240 if left out."),
        ),
        _matrix,
        reads_tensors,
    ),
    *(
        _endpoint_of(name)
        for name in ("heatmap", "trend", "precision", "quantiles", "outliers", "trampled", "audit")
    ),
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
