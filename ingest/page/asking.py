"""What a URL asks for: typed parameters of an endpoint, a tensor or cells of a run; URLs that lead there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from ingest.page.library import Library
from ingest.page.moment import Moment
from ingest.page.watchers import Watched
from ingest.questions.matrix import Matrix, matrix_of_steps, parse_range
from ingest.reader.tensor import Tensor
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
    """The watchers of the run; None if the page knows of none, or the view does not show them."""

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
    """What it answers; the title of a screen."""
    parameters: tuple[UrlParameter, ...]
    answer: Callable[[Asked], Any]
    """Returns what is sent as JSON; what the template of a screen shows."""
    is_slow: Callable[[Arguments], bool] = lambda _: False
    """Whether it reads the indexes of many steps, which takes seconds: then others do not wait for it."""
    command: str = ""
    """The command that prints the same JSON."""
    template: str = ""
    """Of a screen; "" for JSON."""
    shows_watchers: bool = False
    """Whether it has `watched`, and follows it."""


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
