"""The answer of `origin`, as values, and how it describes calls and roots in words.

The whole spread of something bad within its step is a graph of every operator and every edge.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from ingest.questions.origin.calls import Call, Crossing, Flow, Mask, rows_of
from ingest.questions.origin.roots import Root
from ingest.questions.question import Note, Part, Shown, Table
from ingest.questions.why import WhyAnswer
from ingest.reader.choice import named_ranges
from ingest.reader.context import SourceLine, context_of
from ingest.reader.operator_kinds import is_input, is_output, is_parameter
from ingest.reader.snapshot import LeftOut, Snapshot
from ingest.reader.step import Step
from ingest.reader.tensor import Tensor
from ingest.reader.text import Plain, counted, html_block, number_text, printable, shape_text, table_lines
from workers.arrays.statistics import COUNT_FIELDS, FIELDS, Statistics
from workers.errors import DamagedStore
from workers.model import grouped

OPERATOR, PARAMETER, PASSAGE = "operator", "parameter", "passage"


@dataclass(frozen=True, slots=True)
class SpreadNode:
    """A call of an operator that holds something bad; or the passage of it through a collective."""

    id: int
    """Its place in `SpreadGraph.nodes`; 0 is the origin."""
    kind: str
    """`operator`, `parameter`, or `passage`: one collective, between the calls of it on several ranks."""
    rank: int | None
    step: int
    graph: str
    op_type: str
    op_name: str
    occurrence: int

    @property
    def label(self) -> str:
        """Type and name in words, with the rank."""
        repeated = f" #{self.occurrence}" if self.occurrence else ""
        rank = "all its ranks" if self.rank is None else f"rank {self.rank}"
        return f"{self.op_type} ({self.op_name}){repeated}, {rank}"


@dataclass(frozen=True, slots=True)
class SpreadEdge:
    """The passing of something bad from one node to another."""

    source: int
    target: int
    tensor: str | None
    """The input of the target that brought it; None if it is not known, and to or from a passage."""
    holds: str
    """`NaN`, `+Inf`, `-Inf`, `Inf`, or "" if that is not known."""
    is_assumed: bool


@dataclass(frozen=True, slots=True)
class SpreadGraph(Plain):
    """Every operator that something bad reached in its own step, and every edge between them."""

    nodes: tuple[SpreadNode, ...] = ()
    """Nearest to the origin first; the origin is the first."""
    edges: tuple[SpreadEdge, ...] = ()

    def to_text(self) -> Iterator[str]:
        """Yield a line for each node, with a line for each edge that arrives at it below."""
        arriving = grouped((edge.target, edge) for edge in self.edges)
        for node in self.nodes:
            yield f"{node.id}  {node.label}"
            for edge in arriving.get(node.id, ()):
                what = f"  {edge.holds} in {edge.tensor}" if edge.tensor else ""
                yield f"    from {edge.source}{what}{'  (assumed)' * edge.is_assumed}"

    def to_dot(self) -> Iterator[str]:
        """Yield the lines of the graph in the language DOT of Graphviz."""
        shapes = {OPERATOR: "box", PARAMETER: "ellipse", PASSAGE: "hexagon"}
        yield "digraph spread {"
        for node in self.nodes:
            rank = "" if node.rank is None else f"rank {node.rank}"
            label = "\\n".join(map(_escaped, filter(None, (node.op_type, node.op_name, rank))))
            bold = ', style="bold"' if node.id == 0 else ""
            yield f'  n{node.id} [shape={shapes[node.kind]}, label="{label}"{bold}];'
        for edge in self.edges:
            style = ', style="dashed"' if edge.is_assumed else ""
            yield f'  n{edge.source} -> n{edge.target} [label="{_escaped(edge.holds)}"{style}];'
        yield "}"


def graph_of(root: Root) -> SpreadGraph:
    """Return the graph of everything that something bad reached from a root, in its own step.

    Takes time and memory in proportion to the number of edges. A collective is one node of its own between
    the ranks, because edges for each pair of ranks would be thousands.
    """
    flow, reached = root.flow, root.reached
    crossings = flow.crossings_of(reached)
    members: list[Call | Crossing] = [*reached, *crossings]
    ids = {each: place for place, each in enumerate(members)}
    nodes = [_node(number, each, root.call.step) for each, number in ids.items()]
    edges = list(_edges_between(reached, flow, ids))
    for crossing in crossings:
        into = [(ids[call], ids[crossing]) for call in crossing.sources if call in ids]
        out_of = [(ids[crossing], ids[call]) for call in crossing.targets if call in ids]
        edges += [SpreadEdge(begin, end, None, "", crossing.is_assumed) for begin, end in into + out_of]
    return SpreadGraph(tuple(nodes), tuple(edges))


def _edges_between(
    calls: Sequence[Call], flow: Flow, ids: Mapping[Call | Crossing, int]
) -> Iterator[SpreadEdge]:
    for call in calls:
        for edge in flow.before.get(call, ()):
            operand = edge.operand
            name, holds = (None, "") if operand is None else (call.name_of(operand), operand.holds)
            if edge.source in ids:
                yield SpreadEdge(ids[edge.source], ids[call], name, holds, edge.is_assumed)


def _node(number: int, each: Call | Crossing, step: int) -> SpreadNode:
    key, rank, kind = each.key, None, PASSAGE
    if isinstance(each, Call):
        rank, kind = each.rank, PARAMETER if is_parameter(key.op_type) else OPERATOR
    return SpreadNode(number, kind, rank, step, key.graph, key.op_type, key.op_name, key.occurrence)


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return escaped if escaped.isprintable() else "".join(c if c.isprintable() else "?" for c in escaped)


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
    io: str
    slot: int
    dtype: str
    shape: tuple[int, ...]
    statistics: Statistics
    is_bad: bool

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
    is_assumed: bool = False


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
    unlinked: int = 0
    """The number of later operators of its rank and step that hold it, too, without having read its bits."""
    first_unlinked: OriginOperator | None = None
    steps: tuple[OriginLater, ...] = ()
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
    inputs: tuple[OriginTensor, ...] = ()
    outputs: tuple[OriginTensor, ...] = ()
    why: WhyAnswer | None = None
    """What in the inputs did it; None if the elements are not known, for overflow records and conditions."""
    spread: OriginSpread = field(default_factory=OriginSpread)
    alternatives: tuple[OriginOperator, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    looked_for: str = "auto"
    """The cause that was asked for: `nan`, `inf`, `overflow`, `auto`; or the condition."""
    store: str = ""
    drawn_as: str = ""
    """How the whole spread is told instead: `text`, or `dot` for Graphviz."""

    def __repr__(self) -> str:
        return f"<OriginAnswer {next(map(printable, _headline(self)))}>"

    def __str__(self) -> str:
        """Return the output of `dump-ingest origin`."""
        lines: list[str] = []
        for part in self.report():
            if isinstance(part, Table):
                rows = [[str(cell) for cell in row] for row in part.cells()]
                lines += table_lines([*part.columns], rows, right=part.right)
            elif isinstance(part, str):
                lines.append(part)
        return "\n".join(map(printable, lines))

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
    }.get(looked_for)
    return f"{what} that matters in the examined steps." if what else f"No tensor fulfils {looked_for}."


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
    yield from _reach_lines(answer)
    for collective in spread.collectives[:_FEW]:
        from_to = [named_ranges("rank", of) for of in (collective.from_ranks, collective.to_ranks)]
        assumed = " (assumed)" if collective.is_assumed else ""
        yield f"through {collective.op_type} ({collective.op_name}) from {' to '.join(from_to)}{assumed}"
    if spread.collectives[_FEW:]:
        yield f"{len(spread.collectives) - _FEW} more"
    if spread.ends and spread.operators:
        yield f"in the end: {'; '.join(_first(_FEW, spread.ends))}"
    yield from _first(_FEW, map(_later_text, spread.steps))


def _reach_lines(answer: OriginAnswer) -> Iterator[str]:
    spread = answer.spread
    if spread.operators:
        ranks = named_ranges("rank", spread.ranks)
        yield f"{counted(spread.operators, 'operator')} in step {answer.step}, on {ranks}"
    elif spread.first_unlinked is not None:
        first = _operator_text(spread.first_unlinked)
        later = counted(spread.unlinked, "later operator")
        yield f"no dumped operator read the same bits; in {later} of the step, too, first in {first}"
    elif answer.how in ("born", "came in"):
        yield f"not to any other dumped operator in step {answer.step}"


def _later_text(later: OriginLater) -> str:
    return (
        f"step {later.step}, {named_ranges('rank', later.ranks)}"
        + (f": through {', '.join(_first(_FEW, later.through))}" if later.through else "")
        + (f": born again in {', '.join(_first(_FEW, later.born_again))}" if later.born_again else "")
    )


def _first(limit: int, texts: Iterable[str]) -> list[str]:
    listed = list(texts)
    rest = len(listed) - limit
    return [*listed[:limit], f"{rest} more"] if rest > 0 else listed


def _operator_text(operator: OriginOperator) -> str:
    if not operator.op_name:
        return "an operator that was not dumped"
    repeated = f" #{operator.occurrence}" if operator.occurrence else ""
    return f"{operator.op_type} ({operator.op_name}){repeated}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    shown = list(lines)
    if shown:
        yield ""
        yield title
    yield from (f"  {line}" for line in shown)


#: How many items a list in words names.
_LISTED = 5


def describe_root(root: Root) -> str:
    """Describe what began, how, and in which operator, without the rank."""
    what = root.holds or "NaN or Inf"
    name = f"{root.call.op_type} ({root.call.op_name})"
    if root.operand is None:
        return f"{what} born in {name}"
    apposition = f", which is {parameter}," if (parameter := parameter_read(root)) else ""
    return f"{what} came in with {root.operand.io} {root.operand.slot}{apposition} of {name}"


def parameter_read(root: Root) -> str | None:
    """Return the parameter that the bad input of a root is; None if it is none, or the root itself.

    Only dumps that contain parameters as entries of their own tell.
    """
    if root.operand is None:
        return None
    content = root.operand.content
    parameters = (call for call in root.trace.calls if is_parameter(call.op_type))
    values = ((call.op_name, output) for call in parameters for output in call.bad_outputs)
    name = next((name for name, value in values if value.content == content), None)
    return name if name != root.call.op_name else None


def operator_of(call: Call, reason: str = "", *, is_assumed: bool = False) -> OriginOperator:
    """Return a call as an operator of an answer, with a reason."""
    key = call.key
    return OriginOperator(
        call.rank, call.step, key.graph, key.op_type, key.op_name, key.occurrence, reason, is_assumed
    )


def tensors_of(
    step: Step, call: Call, bad: Mask
) -> tuple[tuple[OriginTensor, ...], tuple[OriginTensor, ...]]:
    """Return all inputs and all outputs of a call, with their statistics."""
    operands = [
        OriginTensor(
            tensor.name,
            tensor.io,
            tensor.slot,
            tensor.dtype,
            tensor.shape,
            tensor.statistics,
            bool(bad[tensor.row]),
        )
        for tensor in (Tensor(step, row) for row in rows_of(step, call.key))
    ]
    inputs = tuple(operand for operand in operands if is_input(operand.io))
    return inputs, tuple(each for each in operands if is_output(each.io) and not is_input(each.io))


def source_of(snapshot: Snapshot, step: Step, call: Call) -> tuple[SourceLine | None, tuple[str, ...]]:
    """Return the line of the program that made a call, and the operators of the model that are fused in it.

    None and empty if the dump does not have them, or is damaged.
    """
    try:
        context, tensor = context_of(snapshot.store, call.rank), Tensor(step, call.row)
        return context.source_line(tensor), context.original_names(tensor)
    except DamagedStore:
        return None, ()


def sentence(text: str) -> str:
    """Return a text with a capital letter at the start and a full stop at the end.

    A name, which is a word with dots, underlines or digits in it, stays as it is spelt.
    """
    word = text.split(maxsplit=1)[0]
    first = text[0].upper() if word.rstrip(",:;").isalpha() else text[0]
    return f"{first}{text[1:]}." if not text.endswith(".") else text


def list_in_words(items: Iterable[str]) -> str:
    """List the first items, and the number of the others: `a, b and 3 more`."""
    texts = list(items)
    rest = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
