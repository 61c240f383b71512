"""What a URL asks for: typed parameters of an endpoint, a tensor or cells of a run; URLs that lead there.

Any declared question has a path, a screen, and the lines that ask the same; the HTTP API answers it with the
same JSON as the command with `--json`, and describes itself.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from ingest.findings.stored import anomalies
from ingest.page.library import Library, Moment
from ingest.page.rendering import command
from ingest.page.sheet import window
from ingest.page.watchers import Watched
from ingest.questions import QUESTIONS
from ingest.questions.choosing import statistic_named
from ingest.questions.compare.run import compare
from ingest.questions.growth import error_growth
from ingest.questions.matrix import (
    MOST_CELLS,
    SUMMARIES,
    Matrix,
    matrix_of_steps,
    parse_cells,
    parse_range,
    value_rows,
)
from ingest.questions.question import CONDITIONS, Parameter, Question, Shown, question_named
from ingest.reader.shown import shown_tensor
from ingest.reader.step import step_row
from ingest.reader.tensor import Tensor
from workers import __version__
from workers.errors import UsageError

Kind: TypeAlias = Literal["integer", "string", "boolean"]
#: The longest text of a parameter: names of tensors have up to 4 KB.
_MAX_TEXT = 8192
#: What a parameter that is a flag may be.
TRUE = frozenset({"1", "true"})
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)


class UrlParameter(NamedTuple):
    """One parameter of a URL."""

    name: str
    kind: Kind
    words: str
    is_required: bool = False

    def refuse_other(self, value: str) -> None:
        """Refuse a value that is too long, or not of its kind.

        Raises:
            UsageError: it is.
        """
        if len(value) > _MAX_TEXT:
            raise UsageError(f"{self.name}: longer than {_MAX_TEXT} characters")
        if self.kind == "integer" and value and not _WHOLE.fullmatch(value):
            raise UsageError(f"{self.name}: {value[:80]!r} is not a whole number")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parameters that a URL has, checked against those that it may have."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, query: Mapping[str, str], parameters: Sequence[UrlParameter]) -> Arguments:
        """Check a query.

        Raises:
            UsageError: a parameter is unknown, missing, too long, or not of its kind.
        """
        known = {parameter.name: parameter for parameter in parameters}
        for name, value in query.items():
            if name not in known:
                hint = f"Parameters: {', '.join(known) or 'none'}."
                raise UsageError(f"no parameter {name[:80]!r}", hint=hint)
            known[name].refuse_other(value)
        for parameter in parameters:
            if parameter.is_required and not query.get(parameter.name):
                raise UsageError(f"the parameter {parameter.name} is missing", hint=parameter.words)
        return cls({name: value for name, value in query.items() if value})

    def text(self, name: str, default: str = "") -> str:
        """Return a text, or the default."""
        return self.given.get(name, default)

    def integer(self, name: str) -> int | None:
        """Return a whole number; None if it is not given."""
        return int(self.given[name]) if name in self.given else None

    def need(self, name: str) -> int:
        """Return a whole number that is required."""
        return int(self.given[name])

    def flag(self, name: str) -> bool:
        """Return whether something is asked for: `1` or `true`."""
        return self.given.get(name, "") in TRUE


@dataclass(frozen=True, slots=True)
class Links:
    """The URLs of one run below the base path of the page."""

    base: str
    """"" or a path such as `/dumps`."""
    run: str = ""

    def view(self, view: str, /, **state: object) -> str:
        """Return the URL of a view in this state; what is None or empty is left out."""
        return self._url("runs", view, state)

    def api(self, question: str, /, **state: object) -> str:
        """Return the URL of an answer as JSON."""
        return self._url("api/v1/runs", question, state)

    def of_run(self, run: str) -> Links:
        """Return the URLs of another run."""
        return Links(self.base, run)

    def tensor(self, tensor: Tensor, **place: object) -> str:
        """Return the URL of a tensor, or of the same one at another rank or step."""
        at = {"rank": tensor.rank, "step": tensor.step, "name": tensor.name, "graph": tensor.graph}
        return self.view("tensor", **{**at, **place})

    def _url(self, above: str, name: str, state: Mapping[str, object]) -> str:
        given = urlencode({key: value for key, value in state.items() if value not in (None, "")})
        return f"{self.base}/{above}/{quote(self.run, safe='')}/{name}{'?' * bool(given)}{given}"


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer that somebody asks for."""

    moment: Moment
    arguments: Arguments
    links: Links
    library: Library | None = None
    """The other runs; None in a report."""
    watched: Watched | None = None

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self.moment.store.url

    def moment_of(self, run: str) -> Moment:
        """Return another run as it is now.

        Raises:
            UsageError: the run does not exist.
            StoreError: it cannot be read.
        """
        if self.library is None:
            raise UsageError(f"no run {run!r}")
        return self.library.run(run).moment()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path below a run: an answer as JSON, or a screen."""

    name: str
    words: str
    parameters: tuple[UrlParameter, ...]
    answer: Callable[[Asked], Any]
    """Returns what is sent as JSON; what the template of a screen shows."""
    is_slow: Callable[[Arguments], bool] = lambda _: False
    """Whether it reads the indexes of many steps, which takes seconds: then others do not wait for it."""
    command: str = ""
    template: str = ""
    """Of a screen; "" for JSON."""
    shows_watchers: bool = False


def tensor_of(moment: Moment, asked: Arguments) -> Tensor:
    """Return the tensor of a rank, step, name and, if several graphs have the name, graph.

    Raises:
        UsageError: the rank, step or tensor does not exist.
        DamagedStore: the index of the step is damaged.
    """
    name, graph = asked.text("name"), asked.text("graph")
    opened = moment.opened(asked.need("rank"), asked.integer("step"))
    tensors = opened.tensors()
    for tensor in tensors:
        if tensor.name == name and graph in ("", tensor.graph):
            return tensor
    similar = difflib.get_close_matches(name, [tensor.name for tensor in tensors[:5000]], n=3, cutoff=0.4)
    raise UsageError(
        f"{opened.key} has no tensor {name!r}",
        hint=f"Similar: {', '.join(similar)}" if similar else "`tensors` lists those that it has.",
    )


def matrix_asked(moment: Moment, asked: Arguments) -> Matrix:
    """Return a number for each rank and step that a URL chooses; what was read before is not read again.

    Raises:
        UsageError: a range is not one, the statistic is unknown, or no tensor matches.
        DamagedStore: no step can be read.
    """
    damaged = [damage.key for damage in moment.damages]
    all_ranks = {*moment.ranks, *(key.rank for key in damaged)}
    all_steps = {*moment.numbers, *(key.step for key in damaged if key.step is not None)}
    ranks = parse_range(asked.text("ranks"), sorted(all_ranks), "ranks")
    steps = parse_range(asked.text("steps"), sorted(all_steps), "steps")
    pattern = asked.text("name", "*")
    return matrix_of_steps(
        moment.steps,
        damaged,
        lambda statistic: moment.statistic(pattern, statistic),
        stat=asked.text("stat", "non_finite"),
        pattern=pattern,
        ranks=ranks,
        steps=steps,
    )


def around(number: int, numbers: Iterable[int]) -> tuple[int | None, int | None]:
    """Return the greatest of these numbers below a number and the least above it; None if there is none."""
    others = set(numbers)
    below = max((other for other in others if other < number), default=None)
    return below, min((other for other in others if other > number), default=None)


#: The questions about one store that have no screen of their own: the others name stores themselves.
ASKED = tuple(name for name in QUESTIONS if name not in ("ls", "anomalies", "localize", "compare-weights"))
RANK = UrlParameter("rank", "integer", "Only this rank.")
STEP = UrlParameter("step", "integer", "Only this step.")


class AnswerLine(NamedTuple):
    """A command line, and the Python expression on `store`, that give the same answer."""

    shell: str
    python: str


def lines(asked: Asked, *same: AnswerLine) -> dict[str, str]:
    """Return what gives the same answers as a view, by where it is typed."""
    opening = f"import ingest\nstore = ingest.open_store({asked.url!r})\n"
    return {
        "shell": "\n".join(line.shell for line in same),
        "Python": opening + "\n".join(line.python for line in same),
    }


@dataclass(frozen=True, slots=True)
class PageQuestion:
    """A question with the parameters that a URL can give it. The page takes partial steps, too."""

    name: str
    question: Question
    told: Mapping[str, Parameter]
    has_partial: bool

    @property
    def parameters(self) -> tuple[UrlParameter, ...]:
        """The parameters of its URL."""
        known = {"rank": RANK, "step": STEP}
        return tuple(
            known.get(name, UrlParameter(name, _kind_of(each), each.option.words))
            for name, each in self.told.items()
        )

    def given(self, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return what a URL gives as the question takes it.

        Raises:
            UsageError: a value is not one of its parameter.
        """
        read = {name: _read(self.told[name], text) for name, text in arguments.items()}
        given = read | ({"include_partial": True} if self.has_partial else {})
        self.question.check(given)
        return given

    def ask(self, asked: Asked, **given: Any) -> Shown:
        """Return the answer about the run that is looked at."""
        return self.question.answered(asked.moment.store, given)

    def line(self, url: str, given: Mapping[str, Any], store: str = "store") -> AnswerLine:
        """Return the lines that ask the same about a store.

        Args:
            url: the store, for the command.
            given: what is asked.
            store: the store, for Python.
        """
        words: list[object] = [self.name, url]
        for name, value in given.items():
            option = self.told[name].option if name in self.told else None
            flag = (option and option.flag) or f"--{name.replace('_', '-')}"
            values = value if isinstance(value, list) else [value]
            words += [flag] if value is True else [word for each in values for word in (flag, each)]
        python = "".join(f", {name}={value!r}" for name, value in given.items())
        return AnswerLine(command(*words), f"ingest.{self.question.ask.__name__}({store}{python})")


@cache
def page_question(name: str) -> PageQuestion:
    """Return a question of `ASKED`; imports it."""
    question = question_named(name)
    told = {each.name: each for each in question.parameters}
    has_partial = told.pop("include_partial", None) is not None
    if told.pop("pattern", None) is not None:
        told.setdefault("name", Parameter("name", CONDITIONS["name"], None))
    return PageQuestion(name, question, told, has_partial)


def _kind_of(parameter: Parameter) -> Any:
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


def _is_of_many_steps(asked: Arguments) -> bool:
    return asked.integer("rank") is None or asked.integer("step") is None


def _question_endpoint(name: str) -> Endpoint:
    asks = page_question(name)

    def answer(asked: Asked) -> Any:
        return asks.ask(asked, **asks.given(asked.arguments.given)).to_json()

    partial = "--include-partial " * asks.has_partial
    return Endpoint(
        name, QUESTIONS[name].summary, asks.parameters, answer, _is_of_many_steps, f"{name} {partial}--json"
    )


_ASK = UrlParameter("ask", "boolean", "Ask with nothing else given.")


def question_screen(name: str) -> Endpoint:
    """Return the screen of a question: a form with its parameters, and what people read of its answer."""
    asks = page_question(name)

    def show(asked: Asked) -> dict[str, Any]:
        numbers, typed = asked.moment.numbers, dict(asked.arguments.given)
        if not typed and "step" in asks.told and numbers:
            typed["step"] = str(numbers[-1])
        shown = {
            "name": name,
            "summary": QUESTIONS[name].summary,
            "questions": ASKED,
            "parameters": asks.parameters,
            "typed": typed,
            "answer": None,
            "url_of": _url_in_table,
        }
        if not asked.arguments.given:
            return shown
        given = asks.given({key: text for key, text in typed.items() if key != _ASK.name})
        same = lines(asked, asks.line(asked.url, given))
        return shown | {"answer": asks.ask(asked, **given), "lines": same}

    return Endpoint(
        name,
        name.capitalize(),
        (*asks.parameters, _ASK),
        show,
        lambda asked: bool(asked.given) and _is_of_many_steps(asked),
        template="question.html.j2",
    )


def _url_in_table(links: Links, text: str, row: Any) -> str:
    """Return where a cell leads: the name of a tensor there, if its row says on which rank and step."""
    ranks = [row.rank] if hasattr(row, "rank") else getattr(row, "ranks", ())
    steps = [row.step] if hasattr(row, "step") else getattr(row, "steps", ())
    if not text or text != getattr(row, "name", None) or not ranks or not steps:
        return ""
    graph = getattr(row, "graph", None)
    return links.view("tensor", rank=ranks[0], step=steps[0], name=text, graph=graph)


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
    *map(_question_endpoint, ASKED),
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
            question.words,
            question.command,
            [
                _RUN_PARAMETER,
                *(
                    {
                        "name": parameter.name,
                        "in": "query",
                        "required": parameter.is_required,
                        "description": parameter.words,
                        "schema": {"type": parameter.kind},
                    }
                    for parameter in question.parameters
                ),
            ],
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
