"""The answer of `origin`, as values."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from ingest.questions.origin.graph import SpreadGraph
from ingest.questions.question import Note, Part, Shown, Table
from ingest.questions.why import WhyAnswer
from ingest.reader.choice import named_ranges
from ingest.reader.context import SourceLine
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import Plain, counted, html_block, number_text, printable, shape_text, table_lines
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, Statistics

#: How many items of a list the text has; the fields have more.
_FEW = 3
#: Headings of numbers in the table of inputs and outputs, and the statistics that they name.
_NUMBERS = {
    "NaN": "nan_count",
    "+Inf": "pos_inf_count",
    "-Inf": "neg_inf_count",
    "min": "min",
    "max": "max",
    "mean": "mean",
    "std": "std",
}


@dataclass(frozen=True, slots=True)
class OriginTensor(Plain):
    """An input or output of the first operator."""

    hidden: ClassVar = ("statistics",)

    name: str
    """Its `Tensor.name`."""
    io: str
    slot: int
    dtype: str
    shape: tuple[int, ...]
    statistics: Statistics
    is_bad: bool
    """Whether it holds what was searched for."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; unknown statistics are None."""
        values: dict[str, float] = {name: getattr(self.statistics, name) for name in FIELDS}
        known = {name: value for name, value in values.items() if math.isfinite(value)}
        counts = {name: int(value) for name, value in known.items() if name in COUNT_FIELDS}
        return Plain.to_dict(self) | dict.fromkeys(FIELDS) | known | counts


@dataclass(frozen=True, slots=True)
class OriginOperator(Plain):
    """An operator that it reached, or another one at which it may have begun."""

    rank: int
    step: int
    graph: str
    op_type: str
    op_name: str
    occurrence: int
    reason: str = ""
    """Why the answer names it."""
    is_assumed: bool = False
    """Whether only the order of execution suggests it."""


@dataclass(frozen=True, slots=True)
class OriginCollective(Plain):
    """A collective through which it reached other ranks."""

    op_type: str
    op_name: str
    from_ranks: tuple[int, ...]
    to_ranks: tuple[int, ...]
    is_assumed: bool = False


@dataclass(frozen=True, slots=True)
class OriginLater(Plain):
    """A later step in which it is present, too."""

    step: int
    ranks: tuple[int, ...]
    through: tuple[str, ...] = ()
    """The first of the parameters and other bad tensors of the step before that carried it over.

    Bad tensors of that step with other origins are included.
    """
    born_again: tuple[str, ...] = ()
    """Operators that produced it again, from clean inputs."""


@dataclass(frozen=True, slots=True)
class OriginSpread(Plain):
    """How it spread from the first operator."""

    hidden: ClassVar = ("graph",)

    next: tuple[OriginOperator, ...] = ()
    """The first 20 of the operators that it reached in the same step and on the same rank, nearest first."""
    operators: int = 0
    """The number of operators that it reached in the same step, on all ranks, without the first one."""
    collectives: tuple[OriginCollective, ...] = ()
    """The first 20 of the collectives through which it reached other ranks, in the same step."""
    ranks: tuple[int, ...] = ()
    """The ranks that it reached in the same step, including its own."""
    ends: tuple[str, ...] = ()
    """The first 10 of the outputs and parameters that hold it at the end, as `rank R NAME`."""
    steps: tuple[OriginLater, ...] = ()
    """Later steps in which it is present."""
    graph: SpreadGraph = field(default_factory=SpreadGraph, repr=False)
    """The whole spread within its step. JSON does not have it unasked, because it may be large."""


@dataclass(frozen=True, slots=True)
class OriginAnswer(Shown, Plain):
    """The first operator that produced what was searched for, and how it spread.

    If there is none, all fields about the operator are None.
    """

    hidden: ClassVar = ("looked_for", "store", "drawn_as")
    is_alarm: ClassVar = False

    cause: str | None
    """`nan`, `inf`, `overflow`, `where`; or None."""
    how: str | None = None
    """`born`, `came in`, `came through a collective`, or `recorded` by the hardware."""
    what: str | None = None
    """`NaN`, `+Inf`, `-Inf`, `Inf`, `overflow`, or the condition."""
    rank: int | None = None
    step: int | None = None
    graph: str | None = None
    op_type: str | None = None
    op_name: str | None = None
    occurrence: int | None = None
    came_in: str | None = None
    """For `came in`: the name of the bad input, with the parameter that it is, if known."""
    fused_from: tuple[str, ...] = ()
    """The operators of the model that a compiler fused into it, as GE's graph or DumpData tell."""
    source: SourceLine | None = None
    """The line of the program that made the operator; None if it is not known."""
    inputs: tuple[OriginTensor, ...] = ()
    outputs: tuple[OriginTensor, ...] = ()
    why: WhyAnswer | None = None
    """What in the inputs did it; None if the elements are not known, for overflow records and conditions."""
    spread: OriginSpread = field(default_factory=OriginSpread)
    alternatives: tuple[OriginOperator, ...] = ()
    """Other operators at which it may have begun, with the reason."""
    notes: tuple[str, ...] = ()
    """What is not certain, and what is harmless, in words."""
    left_out: tuple[LeftOut, ...] = ()
    """Steps that the answer is not about, with the reason."""
    looked_for: str = "auto"
    """The cause that was asked for: `nan`, `inf`, `overflow`, `auto`; or the condition."""
    store: str = ""
    drawn_as: str = ""
    """How the whole spread is told instead: `text`, or `dot` for Graphviz."""

    def __repr__(self) -> str:
        return f"<OriginAnswer {next(map(printable, _lines(self)), 'nothing')}>"

    def __str__(self) -> str:
        """Return the output of `dump-ingest origin`."""
        return "\n".join(map(printable, _lines(self)))

    def _repr_html_(self) -> str:
        return html_block(str(self))

    @property
    def found(self) -> bool:
        """Whether the answer names an operator."""
        return self.rank is not None

    @property
    def place(self) -> tuple[int, int] | None:
        """The rank and step where it began."""
        return None if self.rank is None or self.step is None else (self.rank, self.step)

    def table(self) -> Table[OriginTensor]:
        """Return a row for each input and output of the operator."""
        return Table(
            {
                "tensor": lambda row: f"{row.io} {row.slot}" if row.slot >= 0 else row.io,
                "dtype": lambda row: row.dtype,
                "shape": lambda row: shape_text(row.shape),
                **{heading: partial(_number, name) for heading, name in _NUMBERS.items()},
            },
            (*self.inputs, *self.outputs),
            "tensor",
            right=[*_NUMBERS],
            spare=("std", "mean", "dtype", "shape", "-Inf", "+Inf"),
        )

    def report(self) -> Iterator[Part]:
        """Yield what happened, the operands, why, and how it spread; or the whole spread."""
        if self.drawn_as:
            graph = self.spread.graph
            yield from graph.to_dot() if self.drawn_as == "dot" else graph.to_text()
            if not graph.nodes:
                unknown = ["How it spread is not recorded."] * self.found
                yield Note("\n".join([*_headline(self), *unknown]), "")
            return
        yield from _headline(self)
        if self.inputs or self.outputs:
            yield ""
            yield self.table()
        yield from _details(self)
        for tensor in self._telling():
            # A name may contain glob characters; `show` prefers an exact match.
            where = f"{shlex.quote(self.store)} {shlex.quote(tensor.name)}"
            yield Note(f"dump-ingest show {where} --rank {self.rank} --step {self.step}", "values")

    def _telling(self) -> list[OriginTensor]:
        """Return what to look at: a clean input and a bad output, or what was bad when it came in."""
        bad = [tensor for tensor in self.outputs if tensor.is_bad]
        if self.came_in is not None:
            return [tensor for tensor in (*self.inputs, *bad) if tensor.is_bad][:1]
        return [*self.inputs[:1], *bad[:1]]

    def to_dict(self) -> dict[str, Any]:
        """Return one object of plain values."""
        line, told = self.source, Plain.to_dict(self)
        names = ("file", "line", "code", "of", "matched", "op", "source")
        told["source"] = None if line is None else {name: getattr(line, name) for name in names}
        return told if self.found else told | {"spread": None}

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints: with the whole spread if that was asked for."""
        return self.to_dict() | ({"spread_graph": self.spread.graph.to_dict()} if self.drawn_as else {})


def _number(name: str, row: OriginTensor) -> str:
    return number_text(getattr(row.statistics, name))


def _lines(answer: OriginAnswer) -> Iterator[str]:
    yield from _headline(answer)
    table = answer.table()
    if table.rows:
        yield ""
        rows = [[str(cell) for cell in row] for row in table.cells()]
        yield from table_lines([*table.columns], rows, right=table.right)
    yield from _details(answer)


def _headline(answer: OriginAnswer) -> Iterator[str]:
    if not answer.found:
        yield _nothing_text(answer.looked_for)
        return
    yield _what_and_where(answer)
    if answer.fused_from:
        yield f"  fused from {', '.join(_first(2 * _FEW, answer.fused_from))}"
    if answer.source is not None:
        yield f"  {answer.source.file}:{answer.source.line}  {answer.source.code}"


def _details(answer: OriginAnswer) -> Iterator[str]:
    if answer.found:
        if answer.why is not None:
            yield from _section("Why", answer.why.lines(_FEW))
        yield from _section("How it spread", _spread_lines(answer))
    others = (
        f"{_operator_text(operator)}, rank {operator.rank}: {operator.reason}"
        for operator in answer.alternatives
    )
    yield from _section("Where else it may have begun", _first(2 * _FEW, others))
    yield from _section("Notes", answer.notes)


def _nothing_text(looked_for: str) -> str:
    what = {
        "auto": "No NaN, Inf or overflow record",
        "nan": "No NaN",
        "inf": "No Inf",
        "overflow": "No overflow record",
    }
    if looked_for not in what:
        return f"No tensor fulfils {looked_for}."
    return f"{what[looked_for]} that matters in the examined steps."


def _what_and_where(answer: OriginAnswer) -> str:
    operator = f"{answer.op_type} ({answer.op_name})" if answer.op_name else "an operator that was not dumped"
    place = f"rank {answer.rank}, step {answer.step}" + (f", graph {answer.graph}" if answer.graph else "")
    first = f"First with {answer.what}: " if answer.cause == "where" else ""
    if answer.how == "recorded":
        return f"The first overflow was recorded in {operator} on {place}"
    if answer.came_in is not None:
        came = f"{answer.came_in}," if first else f"{answer.what} came in with {answer.came_in},"
        return f"{first}{came} on {place}; no dumped operator wrote it"
    if first:
        return f"{first}an output of {operator} on {place}"
    if answer.how == "born":
        return f"{answer.what} was born in {operator} on {place}"
    return f"{answer.what} came through {operator} to {place}; its source is not known"


def _spread_lines(answer: OriginAnswer) -> Iterator[str]:
    spread = answer.spread
    if spread.next:
        assumed = (
            " (by order of execution; their inputs were not dumped)" if spread.next[0].is_assumed else ""
        )
        yield f"next: {'; '.join(_first(_FEW, map(_operator_text, spread.next)))}{assumed}"
    if spread.operators:
        ranks = named_ranges("rank", spread.ranks)
        yield f"{counted(spread.operators, 'operator')} in step {answer.step}, on {ranks}"
    elif answer.how in ("born", "came in"):
        yield f"not to any other dumped operator in step {answer.step}"
    for collective in spread.collectives[:_FEW]:
        from_to = [named_ranges("rank", of) for of in (collective.from_ranks, collective.to_ranks)]
        assumed = " (assumed)" if collective.is_assumed else ""
        yield f"through {collective.op_type} ({collective.op_name}) from {' to '.join(from_to)}{assumed}"
    if spread.collectives[_FEW:]:
        yield f"{len(spread.collectives) - _FEW} more"
    if spread.ends:
        yield f"in the end: {'; '.join(_first(_FEW, spread.ends))}"
    yield from _first(_FEW, map(_later_text, spread.steps))


def _later_text(later: OriginLater) -> str:
    return (
        f"step {later.step}, {named_ranges('rank', later.ranks)}"
        + (f": through {', '.join(_first(_FEW, later.through))}" if later.through else "")
        + (f": born again in {', '.join(_first(_FEW, later.born_again))}" if later.born_again else "")
    )


def _first(limit: int, texts: Iterable[str]) -> list[str]:
    """Return the first texts, and how many more there are."""
    listed = list(texts)
    rest = len(listed) - limit
    return [*listed[:limit], f"{rest} more"] if rest > 0 else listed


def _operator_text(operator: OriginOperator) -> str:
    if not operator.op_name:
        return "an operator that was not dumped"
    repeated = f" #{operator.occurrence}" if operator.occurrence else ""
    return f"{operator.op_type} ({operator.op_name}){repeated}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield an empty line, the title and the lines; nothing without lines."""
    shown = list(lines)
    if shown:
        yield ""
        yield title
    yield from (f"  {line}" for line in shown)
