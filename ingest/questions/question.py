"""The shape of a question: a function with described parameters, and an answer that says how it is shown.

From these come the options and the help of a command, its JSON, its tables on a terminal, in a notebook and
on the page, its path in the HTTP API, and its part of the reference: none of them is written for one
question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter as Argument
from inspect import cleandoc, signature
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar
from typing import get_type_hints as types_of

from ingest.questions import QUESTIONS
from ingest.reader.choice import Choice
from ingest.reader.text import Plain, cell_text, counted, html_table, plain, printable
from workers.errors import UsageError

if TYPE_CHECKING:  # --help of other commands needs neither pandas, numpy nor rich
    import pandas as pd
    from rich.text import Text

    from ingest.reader.snapshot import LeftOut

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Option:
    """What people are told of a parameter. Name, type and default are those of the function."""

    words: str
    metavar: str = ""
    flag: str = ""
    """How the command calls it, such as `--percent`, if not by its name."""
    short: str = ""
    """Its short form, such as `-p`."""
    kind: Callable[[str], Any] = str
    """Reads one value; raises ValueError."""
    within: tuple[int | None, int | None] = (None, None)
    """The least and the greatest number. A whole number is never negative."""
    is_several: bool = False
    is_argument: bool = False
    """Whether the command takes it without a flag, behind STORE."""


def _rank_or_place(text: str) -> int | str:
    """Read `3`, or a place in the mesh of the job, which only the store can resolve: `tp=0,dp=1`."""
    if "=" in text:
        return text
    if not text.isdecimal() or len(text) > 18:  # those of dumps have nine digits at most
        raise ValueError(f"{text!r:.80} is neither a rank nor a place such as tp=0 or tp=0,dp=1.")
    return int(text)


RANKS = Option(
    "Only this rank, or the ranks at a place of the mesh (tp=0,dp=1); may be repeated.",
    "RANK|AXIS=N",
    short="-r",
    kind=_rank_or_place,
    is_several=True,
)
STEPS = Option("Only this step; may be repeated.", flag="--step", short="-n", kind=int, is_several=True)
Pattern: TypeAlias = Annotated[
    str | None, Option("A glob over tensor names, such as '*Adam*.input.0'.", "PATTERN", is_argument=True)
]
Statistic: TypeAlias = Annotated[
    str | None,
    Option(
        "The statistic: l2_norm, max, std, nan_count, ... Default: l2_norm; mean for --role loss.", "NAME"
    ),
]
Ranks: TypeAlias = Annotated[Choice, RANKS]
Steps: TypeAlias = Annotated[Choice, STEPS]
Partial: TypeAlias = Annotated[bool, Option("Include partial steps.")]

#: What chooses tensors, in every question that takes `FilterFields`; `regex` is a name, too.
CONDITIONS: Mapping[str, Option] = {
    "name": Option("A glob over the name, such as '*Log*.output.*'.", "GLOB"),
    "regex": Option("A regular expression to search in the name.", "REGEX"),
    "op_type": Option("The operator type, such as MatMul.", "TYPE"),
    "role": Option("The role: loss, gradient, weight, optimizer_state or activation.", "ROLE"),
    "graph": Option("The graph.", "GRAPH"),
    "io": Option("input or output; for CANN also buffer or space.", "KIND"),
    "where": Option("A condition, such as \"nan_count > 0 and io == 'output'\".", "CONDITION", short="-w"),
}


def conditions_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given of `CONDITIONS` as `FilterFields`.

    Raises:
        UsageError: a name and a regular expression are given, or that is not one.
    """
    from ingest.questions.name_pattern import BoundedPattern  # deferred: regex takes 30 ms to import

    chosen = {name: given[name] for name in CONDITIONS if given.get(name) is not None}
    if "regex" in chosen:
        if "name" in chosen:
            raise UsageError("--name and --regex exclude each other")
        chosen["name"] = BoundedPattern(chosen.pop("regex"))
    return chosen


class Parameter(NamedTuple):
    """A parameter of a question."""

    name: str
    option: Option
    default: Any


class Note(NamedTuple):
    """Something besides the answer: a command says it on stderr, the page below the table."""

    text: str
    label: str = "note"


#: The labels of notes about what an answer does not cover, and of why there is none: then the command exits
#: with 1.
LEFT_OUT, ERROR = "left out", "error"
#: The labels of notes that are also said beside JSON.
BESIDE_JSON = frozenset({LEFT_OUT, ERROR, "bounded", "failed", "hint", "not evaluated", "warning"})


@dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """Rows, and what each column says of one."""

    columns: Mapping[str, Callable[[Row], Any]]
    rows: Sequence[Row]
    noun: str = ""
    """What a row is, such as `tensor`; "" if the headline of the answer says how many there are."""
    right: Sequence[str] = ()
    spare: Sequence[str] = ()
    """Headings that a narrow terminal may lack, the first of them first."""

    def cells(self, limit: int = 0) -> Iterator[list[str | Text]]:
        """Yield the cells of the first rows, or of all with limit 0: as `cell_text` has plain values."""
        for row in islice(self.rows, limit or None):
            told = (cell(row) for cell in self.columns.values())
            yield [each if hasattr(each, "plain") else cell_text(each) for each in told]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lines of characters that depend on where they are drawn."""

    lines: Callable[[int, int, bool], Iterable[Text]]
    """Returns them for a width, a limit of rows (0: all), and whether there are colours."""
    rows: int
    noun: str


@dataclass(frozen=True, slots=True)
class Texts:
    """Things that take a few lines of prose each."""

    texts: Sequence[str]
    noun: str = ""
    """What one of them is about; "" if the headline of the answer says how many there are."""


#: What an answer consists of where people read it. A text is a line of prose.
Part: TypeAlias = str | Table[Any] | Texts | Drawing | Note


class Shown:
    """An answer as commands and the page show it."""

    __slots__ = ()

    if TYPE_CHECKING:  # a field of most answers

        @property
        def left_out(self) -> Sequence[object]:
            """Steps that the answer is not about, and why."""

    @property
    def damaged(self) -> Sequence[object]:
        """Those of them that are damaged, and what else is: then the command exits with 3."""
        return [left for left in self.left_out if getattr(left, "is_damaged", False)]

    @property
    def is_alarm(self) -> bool:
        """Whether it says that something differs: then the command exits with 5."""
        return False

    def report(self) -> Iterable[Part]:
        """Return what people read."""
        raise NotImplementedError

    def to_json(self) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        """Return what `--json` prints, and the page's API answers."""
        told: dict[str, Any] = plain(self)
        return told


class Answer(Shown, Plain):
    """An answer about one store, which has rows."""

    __slots__ = ()

    noun: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()
    """What pandas has of a row, if there is none; the columns that people read if that is not told."""
    left_out: tuple[LeftOut, ...]
    store: str

    def table(self) -> Table[Any]:
        """Return the rows with the columns that people read."""
        raise NotImplementedError

    def report(self) -> Iterable[Part]:
        """Return what people read: the table, if it has rows."""
        yield self.table()

    def rows_of_table(self) -> list[dict[str, Any]]:
        """Return the rows as flat dictionaries of plain values."""
        return [plain(row) for row in self.table().rows]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each of the things that the answer names."""
        import pandas as pd  # deferred: takes 0.4 s to import

        rows = self.rows_of_table()
        return pd.DataFrame(rows, columns=list(rows[0] if rows else self.keys or self.table().columns))

    @property
    def headline(self) -> str:
        """What it says, in a few words."""
        return counted(len(self.table().rows), self.noun)

    def __repr__(self) -> str:
        return printable(f"<{type(self).__name__} {self.store}: {self.headline}>")

    def _repr_html_(self) -> str:
        shown = self.table()
        title = f"{self.headline}: {self.store}"
        return html_table(title, list(shown.columns), shown.cells(), total=len(shown.rows))


class RowList(Answer):
    """An answer that is its rows: JSON is a list of them, and its headline says how many there are."""

    __slots__ = ()

    def json_rows(self, limit: int = 0) -> list[Any]:
        """Return the first rows as JSON has them; all of them with limit 0."""
        return [plain(row) for row in islice(self.table().rows, limit or None)]

    def to_json(self) -> Sequence[Mapping[str, Any]]:
        """Return what `--json` prints without a limit."""
        return self.json_rows()


@dataclass(frozen=True, slots=True, repr=False)
class Rows(RowList):
    """Rows with the columns that people read of them."""

    noun: ClassVar = "row"

    store: str
    rows: Sequence[Any]
    columns: Mapping[str, Callable[[Any], object]]
    right: Sequence[str] = ()
    spare: Sequence[str] = ()
    none: str = ""
    """What is said without any row; "" for a table of none."""
    more: tuple[Part, ...] = ()
    headline: str = ""
    left_out: tuple[LeftOut, ...] = ()
    damaged: Sequence[object] = ()
    as_json: Callable[[Any], Any] = plain
    """Returns what JSON has of a row."""

    def table(self) -> Table[Any]:
        """Return the rows."""
        return Table(self.columns, self.rows, right=self.right, spare=self.spare)

    def report(self) -> Iterable[Part]:
        """Yield the rows, and what else there is to say."""
        yield Note(self.none, "") if self.none and not self.rows else self.table()
        yield from self.more

    def json_rows(self, limit: int = 0) -> list[Any]:
        """Return the first rows as JSON has them; all of them with limit 0."""
        return [self.as_json(row) for row in self.rows[: limit or None]]


@dataclass(frozen=True, slots=True)
class Mode:
    """Another question that the same command asks if one of its options is given."""

    name: str
    option: Option
    default: Any
    """What the option is without it: None, or False for a flag."""
    ask: Callable[..., Shown]
    """Takes the store, the value of the option, and those of `takes` that are given."""
    takes: frozenset[str]
    """Parameters and other modes of the question that it takes; it refuses others that choose something."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question as commands and the page ask it."""

    ask: Callable[..., Any]
    """Its function in Python: takes a store first, then the parameters. The docstring is the help, too."""
    examples: tuple[str, ...] = ()
    """Command lines without `dump-ingest`."""
    limit: int | None = 50
    """The rows that a command prints by default; None if it prints all that there are."""
    is_listing: bool = False
    """Whether its answers are `RowList`: `--limit` is for JSON, too, and only a terminal has a default."""
    noun: str = "tensor"
    shown: Callable[[Any], Shown] = lambda answer: answer
    """Turns what the function returns into what is shown, if that is a table of another library."""
    modes: tuple[Mode, ...] = ()
    has_page: bool = False
    """Whether a command can write the answer, which has a `title`, as a page of HTML."""
    takes_mesh: bool = False
    """Whether the places of ranks matter, so that a command can say how they are laid out."""
    check: Callable[[Mapping[str, Any]], object] = lambda _: None
    """Refuses wrong parameters before the store is opened."""

    @property
    def help(self) -> str:
        """What the function does, for people: its docstring up to what is about Python."""
        return cleandoc(self.ask.__doc__ or "").partition("\n\nReturns:")[0].partition("\n\nRaises:")[0]

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters that have an `Option`, and the conditions on tensors if it takes them."""
        given = signature(self.ask).parameters
        types = types_of(
            SimpleNamespace(__annotations__={name: each.annotation for name, each in given.items()}),
            getattr(self.ask, "__globals__", {}),
            include_extras=True,
        )
        told = []
        for name, each in given.items():
            if each.kind is Argument.VAR_KEYWORD:
                told += [Parameter(condition, option, None) for condition, option in CONDITIONS.items()]
            for option in getattr(types[name], "__metadata__", ()):
                told.append(Parameter(name, option, each.default))
        return told

    @property
    def takes_conditions(self) -> bool:
        """Whether conditions choose its tensors."""
        return any(each.kind is Argument.VAR_KEYWORD for each in signature(self.ask).parameters.values())

    def answered(self, store: Any, given: Mapping[str, Any]) -> Shown:
        """Return the answer for parameters by name; conditions are among them as people write them.

        Args:
            store: the store; None for a question that names stores itself.
            given: what was given.
        """
        if self.takes_conditions:
            own = {name: value for name, value in given.items() if name not in CONDITIONS}
            given = own | conditions_of(given)
        return self.shown(self.ask(*([] if store is None else [store]), **given))


def question_named(name: str) -> Question:
    """Return the question of this name in `QUESTIONS`; imports it."""
    question: Question = import_module(QUESTIONS[name].home).QUESTION
    return question


def without_histogram(count: int) -> Iterator[Note]:
    """Yield how many of the chosen tensors have no histogram, if any."""
    if count:
        text = f"{counted(count, 'tensor')} without a histogram: `dump-ingest sketch STORE` adds them while "
        yield Note(f"{text}the elements are there", LEFT_OUT)
