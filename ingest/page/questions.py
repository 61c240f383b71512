"""Any declared question as the page asks it: its answer, its screen, and the lines that ask the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ingest.page.asking import TRUE, Arguments, Asked, Endpoint, Links, UrlParameter
from ingest.page.rendering import command
from ingest.questions import QUESTIONS
from ingest.questions.question import CONDITIONS, Parameter, Question, Shown, question_named
from workers.errors import UsageError

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


def is_of_many_steps(asked: Arguments) -> bool:
    """Return whether a question is about more than one rank and step."""
    return asked.integer("rank") is None or asked.integer("step") is None


def question_endpoint(name: str) -> Endpoint:
    """Return the path of a question below the API."""
    asks = page_question(name)

    def answer(asked: Asked) -> Any:
        return asks.ask(asked, **asks.given(asked.arguments.given)).to_json()

    partial = "--include-partial " * asks.has_partial
    return Endpoint(
        name, QUESTIONS[name].summary, asks.parameters, answer, is_of_many_steps, f"{name} {partial}--json"
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
            "url_of": url_in_table,
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
        lambda asked: bool(asked.given) and is_of_many_steps(asked),
        template="question.html.j2",
    )


def url_in_table(links: Links, text: str, row: Any) -> str:
    """Return where a cell leads: the name of a tensor there, if its row says on which rank and step."""
    ranks = [row.rank] if hasattr(row, "rank") else getattr(row, "ranks", ())
    steps = [row.step] if hasattr(row, "step") else getattr(row, "steps", ())
    if not text or text != getattr(row, "name", None) or not ranks or not steps:
        return ""
    graph = getattr(row, "graph", None)
    return links.view("tensor", rank=ranks[0], step=steps[0], name=text, graph=graph)
