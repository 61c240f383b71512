"""The answer of `origin`, as values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ingest.questions.origin.graph import SpreadGraph
from ingest.questions.why import WhyAnswer
from ingest.reader import notebook
from ingest.reader.context import SourceLine
from ingest.reader.ranges import named_ranges
from ingest.reader.snapshot import LeftOut
from ingest.reader.text import counted, number_text, printable, shape_text, table_lines
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
#: The headings of that table.
_TENSOR_COLUMNS = ("tensor", "dtype", "shape", *_NUMBERS)


@dataclass(frozen=True, slots=True)
class OriginTensor:
    """An input or output of the first operator."""

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
        numbers = {name: _plain(name, getattr(self.statistics, name)) for name in FIELDS}
        return {
            "name": self.name,
            "io": self.io,
            "slot": self.slot,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "is_bad": self.is_bad,
            **numbers,
        }


@dataclass(frozen=True, slots=True)
class OriginOperator:
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class OriginCollective:
    """A collective through which it reached other ranks."""

    op_type: str
    op_name: str
    from_ranks: tuple[int, ...]
    to_ranks: tuple[int, ...]
    is_assumed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "op_type": self.op_type,
            "op_name": self.op_name,
            "from_ranks": list(self.from_ranks),
            "to_ranks": list(self.to_ranks),
            "is_assumed": self.is_assumed,
        }


@dataclass(frozen=True, slots=True)
class OriginLater:
    """A later step in which it is present, too."""

    step: int
    ranks: tuple[int, ...]
    through: tuple[str, ...] = ()
    """The first of the parameters and other bad tensors of the step before that carried it over.

    Bad tensors of that step with other origins are included.
    """
    born_again: tuple[str, ...] = ()
    """Operators that produced it again, from clean inputs."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "step": self.step,
            "ranks": list(self.ranks),
            "through": list(self.through),
            "born_again": list(self.born_again),
        }


@dataclass(frozen=True, slots=True)
class OriginSpread:
    """How it spread from the first operator."""

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
    """The whole spread within its step. Not part of `to_dict`, because it may be large."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "next": [operator.to_dict() for operator in self.next],
            "operators": self.operators,
            "collectives": [collective.to_dict() for collective in self.collectives],
            "ranks": list(self.ranks),
            "ends": list(self.ends),
            "steps": [later.to_dict() for later in self.steps],
        }


@dataclass(frozen=True, slots=True)
class OriginAnswer:
    """The first operator that produced what was searched for, and how it spread.

    If there is none, all fields about the operator are None.
    """

    tensor_columns: ClassVar[tuple[str, ...]] = _TENSOR_COLUMNS
    """Those of `tensor_rows`."""
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

    def __repr__(self) -> str:
        return f"<OriginAnswer {next(map(printable, _lines(self)), 'nothing')}>"

    def __str__(self) -> str:
        """Return the output of `dump-ingest origin`."""
        return "\n".join(map(printable, _lines(self)))

    def _repr_html_(self) -> str:
        return notebook.block(str(self))

    def headline(self) -> list[str]:
        """Return the first lines of the text: what was found and where, and the line of the program."""
        return [*_headline(self)]

    def tensor_rows(self) -> list[tuple[str, ...]]:
        """Return the table of the text, inputs and outputs of the operator, as cells of `tensor_columns`."""
        return [*map(_tensor_row, (*self.inputs, *self.outputs))]

    def details(self) -> list[str]:
        """Return the lines of the text that follow the table: why, how it spread, what is not certain."""
        return [*_details(self)]

    @property
    def found(self) -> bool:
        """Whether the answer names an operator."""
        return self.rank is not None

    def to_dict(self) -> dict[str, Any]:
        """Return one object of plain values."""
        line = self.source
        source = None
        if line is not None:
            names = ("file", "line", "code", "of", "matched", "op", "source")
            source = {name: getattr(line, name) for name in names}
        return {
            "rank": self.rank,
            "step": self.step,
            "graph": self.graph,
            "op_type": self.op_type,
            "op_name": self.op_name,
            "occurrence": self.occurrence,
            "cause": self.cause,
            "how": self.how,
            "what": self.what,
            "came_in": self.came_in,
            "fused_from": list(self.fused_from),
            "source": source,
            "inputs": [tensor.to_dict() for tensor in self.inputs],
            "outputs": [tensor.to_dict() for tensor in self.outputs],
            "why": self.why.to_dict() if self.why is not None else None,
            "spread": self.spread.to_dict() if self.found else None,
            "alternatives": [operator.to_dict() for operator in self.alternatives],
            "notes": list(self.notes),
            "left_out": [left.to_dict() for left in self.left_out],
        }


def _plain(name: str, value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if name in COUNT_FIELDS else value


def _lines(answer: OriginAnswer) -> Iterator[str]:
    yield from _headline(answer)
    if rows := answer.tensor_rows():
        yield ""
        yield from table_lines(answer.tensor_columns, rows, right=[*_NUMBERS])
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
    if answer.how == "recorded":
        return f"The first overflow was recorded in {operator} on {place}"
    if answer.cause == "where":
        if answer.came_in is not None:
            return f"First with {answer.what}: {answer.came_in}, on {place}; no dumped operator wrote it"
        return f"First with {answer.what}: an output of {operator} on {place}"
    if answer.came_in is not None:
        return f"{answer.what} came in with {answer.came_in}, on {place}; no dumped operator wrote it"
    if answer.how == "born":
        return f"{answer.what} was born in {operator} on {place}"
    return f"{answer.what} came through {operator} to {place}; its source is not known"


def _tensor_row(tensor: OriginTensor) -> tuple[str, ...]:
    return (
        f"{tensor.io} {tensor.slot}" if tensor.slot >= 0 else tensor.io,
        tensor.dtype,
        shape_text(tensor.shape),
        *(number_text(getattr(tensor.statistics, name)) for name in _NUMBERS.values()),
    )


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
    yield from _first(_FEW, map(_collective_text, spread.collectives))
    if spread.ends:
        yield f"in the end: {'; '.join(_first(_FEW, spread.ends))}"
    yield from _first(_FEW, map(_later_text, spread.steps))


def _collective_text(collective: OriginCollective) -> str:
    return (
        f"through {collective.op_type} ({collective.op_name}) "
        f"from {named_ranges('rank', collective.from_ranks)} to {named_ranges('rank', collective.to_ranks)}"
        + (" (assumed)" if collective.is_assumed else "")
    )


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
