"""What a URL asks for: typed parameters, a tensor or cells of a run; URLs and commands that lead there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, urlencode

from ingest.page.library import Library
from ingest.page.moment import Moment
from ingest.page.rendering import command
from ingest.page.watchers import Watched
from ingest.questions.matrix import Matrix, matrix_of_steps, parse_range
from ingest.reader.step_statistics import RankValues
from ingest.reader.tensor import Tensor
from workers.errors import UsageError

Kind: TypeAlias = Literal["integer", "string", "boolean"]
#: The longest text of a parameter: names of tensors have up to 4 KB.
_MAX_TEXT = 8192
#: What a parameter that is a flag may be.
TRUE = frozenset({"1", "true"})
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class UrlParameter:
    """One parameter of a URL."""

    name: str
    kind: Kind
    words: str
    """What it means."""
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
    def of(cls, query: Mapping[str, str], parameters: tuple[UrlParameter, ...]) -> Arguments:
        """Check a query.

        Raises:
            UsageError: a parameter is unknown, missing, too long, or not of its kind.
        """
        known = {parameter.name: parameter for parameter in parameters}
        for name, value in query.items():
            if name not in known:
                names = ", ".join(known) or "none"
                raise UsageError(f"no parameter {name[:80]!r}", hint=f"Parameters: {names}.")
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

    def home(self) -> str:
        """Return the URL of the list of runs."""
        return f"{self.base}/"

    def asset(self, name: str) -> str:
        """Return the URL of a file that comes with the page."""
        return f"{self.base}/static/{name}"

    def view(self, view: str, /, **state: object) -> str:
        """Return the URL of a view in this state; what is None or empty is left out."""
        return f"{self.base}/runs/{quote(self.run, safe='')}/{view}{_query(state)}"

    def api(self, question: str, /, **state: object) -> str:
        """Return the URL of an answer as JSON."""
        return f"{self.base}/api/v1/runs/{quote(self.run, safe='')}/{question}{_query(state)}"

    def of_run(self, run: str) -> Links:
        """Return the URLs of another run."""
        return Links(self.base, run)


def _query(state: dict[str, object]) -> str:
    given = {name: value for name, value in state.items() if value is not None and value != ""}
    return f"?{urlencode(given)}" if given else ""


@dataclass(frozen=True, slots=True)
class Asked:
    """One view that somebody asks for."""

    moment: Moment
    arguments: Arguments
    links: Links
    library: Library | None = None
    """The other runs; None in a report."""
    watched: Watched | None = None
    """The watchers of the run; None if the page knows of none, or the view does not show them."""

    def runs(self) -> list[str]:
        """Return the names of all runs."""
        return self.library.names() if self.library is not None else [self.links.run]

    def moment_of(self, run: str) -> Moment:
        """Return another run as it is now.

        Raises:
            UsageError: the run does not exist.
            StoreError: it cannot be read.
        """
        if self.library is None:
            raise UsageError(f"no run {run!r}")
        return self.library.run(run).moment()

    def storage_options(self) -> dict[str, Any]:
        """Return the options with which the stores are opened."""
        return dict(self.library.options) if self.library is not None else {}

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self.moment.store.url


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """A command line, and the Python expression on `store`, that give the same answer."""

    shell: str
    python: str

    @classmethod
    def of(cls, words: tuple[object, ...], python: str) -> AnswerLine:
        """Return a command, of its words without `dump-ingest`, and an expression."""
        return cls(command(*words), python)


@dataclass(frozen=True, slots=True)
class Lines:
    """The command lines and the Python that give the same answers as a view."""

    shell: str
    python: str


@dataclass(frozen=True, slots=True)
class Screen:
    """A kind of view: its name in the URL, what it may be asked, and how it is made."""

    name: str
    title: str
    template: str
    parameters: tuple[UrlParameter, ...]
    show: Callable[[Asked], dict[str, Any]]
    """Returns what the template shows; `lines` among it."""
    is_slow: Callable[[Arguments], bool] = lambda _: False
    """Whether it reads the indexes of many steps, which takes seconds: then others do not wait for it."""
    shows_watchers: bool = False
    """Whether it has `watched`, and follows it."""


def lines(asked: Asked, *same: AnswerLine) -> Lines:
    """Return the lines for a store, one for each answer of a view."""
    opening = f"import ingest\nstore = ingest.open_store({asked.url!r})\n"
    return Lines("\n".join(line.shell for line in same), opening + "\n".join(line.python for line in same))


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

    def values_of(statistic: str) -> dict[int, RankValues]:
        kept = moment.fields.of(moment.snapshot, moment.generations, pattern, statistic)
        return {step: field.of_ranks for step, field in kept.items()}

    stat = asked.text("stat", "non_finite")
    chosen = {"ranks": ranks, "steps": steps}
    return matrix_of_steps(moment.steps, damaged, values_of, stat=stat, pattern=pattern, **chosen)


def around(number: int, numbers: Iterable[int]) -> tuple[int | None, int | None]:
    """Return the greatest of these numbers below a number and the least above it; None if there is none."""
    others = set(numbers)
    below = max((other for other in others if other < number), default=None)
    return below, min((other for other in others if other > number), default=None)
