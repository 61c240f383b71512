"""The whole spread of something bad within its step, as a graph: every operator and every edge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingest.questions.origin.calls import Call
from ingest.questions.origin.flow import Crossing, Flow
from ingest.questions.origin.roots import Root
from ingest.reader.operator_kinds import is_parameter
from ingest.reader.text import Plain

OPERATOR, PARAMETER, PASSAGE = "operator", "parameter", "passage"


@dataclass(frozen=True, slots=True)
class SpreadNode:
    """A call of an operator that holds something bad; or the passage of it through a collective."""

    id: int
    """Its place in `SpreadGraph.nodes`; 0 is the origin."""
    kind: str
    """`operator`, `parameter`, or `passage`: one collective, between the calls of it on several ranks."""
    rank: int | None
    """None for a passage."""
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
    """Whether only the order of execution suggests it."""


@dataclass(frozen=True, slots=True)
class SpreadGraph(Plain):
    """Every operator that something bad reached in its own step, and every edge between them."""

    nodes: tuple[SpreadNode, ...] = ()
    """Nearest to the origin first; the origin is the first."""
    edges: tuple[SpreadEdge, ...] = ()

    def to_text(self) -> Iterator[str]:
        """Yield a line for each node, with a line for each edge that arrives at it below."""
        arriving: dict[int, list[SpreadEdge]] = {}
        for edge in self.edges:
            arriving.setdefault(edge.target, []).append(edge)
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
    ids = {each: number for number, each in enumerate(members)}
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
    """Yield the edges on single ranks, with the tensor that brought something bad if that is known."""
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
