"""How something bad spread within its step: a lane for each rank, and collectives between the lanes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from ingest.page.charts import picture, tag, text
from ingest.page.rendering import counted, short
from ingest.questions.origin.graph import PARAMETER, PASSAGE, SpreadEdge, SpreadGraph, SpreadNode

#: Nodes that are drawn; the nearest to the origin first.
_MAX_NODES = 48
_MAX_LANES = 10
#: Operators of one rank that are drawn below each other.
_MAX_ROWS = 6
_LEFT, _TOP, _COLUMN, _ROW = 78.0, 4.0, 98.0, 30.0
#: Above the first row of a lane, where edges pass over operators; and the row of a collective between lanes.
_ABOVE, _BETWEEN = 26.0, 26.0
_LABEL = 15
#: What can be read on a sheet of paper that stands upright, where it is drawn at 70 %.
_UPRIGHT = 960


class SpreadPicture(NamedTuple):
    """The picture, and how much of the graph is in it."""

    svg: Markup
    is_wide: bool
    """Whether it needs a sheet of paper that lies on its side."""
    drawn: int
    """Operators besides the origin, parameters and collectives."""
    total: int
    has_passages: bool
    has_parameters: bool


class _Spot(NamedTuple):
    x: float
    y: float


def spread_picture(graph: SpreadGraph) -> SpreadPicture | None:
    """Return the picture; None if nothing was reached."""
    near = _nearest(graph)
    column = _columns(near, graph.edges)
    row = _rows(near, column)
    nodes = {node.id: node for node in near if node.id in row}
    if len(nodes) < 2:
        return None
    tops, height = _lanes(nodes.values(), row)
    places = {
        number: _Spot(_LEFT + column[number] * _COLUMN, tops[node.rank] + row[number] * _ROW)
        for number, node in nodes.items()
    }
    width = max(place.x for place in places.values()) + _COLUMN
    parts = [*_drawn_lanes(tops, width), *_drawn_edges(graph, nodes, places)]
    for number, node in nodes.items():
        parts += _drawn(node, places[number])
    drawn, total = len(nodes) - 1, len(graph.nodes) - 1
    label = f"The spread from {graph.nodes[0].label} to {counted(total, 'operator')}"
    label += f"; the nearest {drawn} are drawn" if drawn < total else ""
    kinds = {node.kind for node in nodes.values()}
    svg = picture(width, height, parts, label, class_="plot spread")
    return SpreadPicture(svg, width > _UPRIGHT, drawn, total, PASSAGE in kinds, PARAMETER in kinds)


def _rows(nodes: Sequence[SpreadNode], column: dict[int, int]) -> dict[int, int]:
    """Return the place of each node among those of its rank and column; the others are not drawn."""
    taken: Counter[tuple[int | None, int]] = Counter()
    row: dict[int, int] = {}
    for node in nodes:
        spot = node.rank, column[node.id]
        if taken[spot] < _MAX_ROWS:
            row[node.id] = taken[spot]
            taken[spot] += 1
    return row


def _drawn_lanes(tops: dict[int | None, float], width: float) -> Iterator[Markup]:
    for rank, y in tops.items():
        if rank is not None:
            yield tag("line", x1=_LEFT - 22, x2=width - 10, y1=y, y2=y, class_="lane")
            yield text(8, y + 4, f"rank {rank}", "strong")


def _drawn_edges(
    graph: SpreadGraph, nodes: dict[int, SpreadNode], places: dict[int, _Spot]
) -> Iterator[Markup]:
    for edge in graph.edges:
        if edge.source in nodes and edge.target in nodes:
            ends = nodes[edge.source], nodes[edge.target]
            yield _drawn_edge(edge, ends, places[edge.source], places[edge.target])


def _nearest(graph: SpreadGraph) -> list[SpreadNode]:
    """Return the nodes nearest to the origin, on the first ranks, and the collectives next to them."""
    near = _operators_near(graph)
    ends = ({edge.source, edge.target} for edge in graph.edges)
    beside: set[int] = set().union(*(both for both in ends if both & near))
    return [node for node in graph.nodes if node.id in (beside if node.rank is None else near)]


def _operators_near(graph: SpreadGraph) -> set[int]:
    operators = [node for node in graph.nodes if node.rank is not None]
    ranks = list(dict.fromkeys(node.rank for node in operators))[:_MAX_LANES]
    return set([node.id for node in operators if node.rank in ranks][:_MAX_NODES])


def _columns(nodes: Sequence[SpreadNode], edges: Sequence[SpreadEdge]) -> dict[int, int]:
    """Return for each node the length of the longest way to it, so that edges lead to the right.

    An edge back into a circle does not count: a collective reads what it writes on some ranks.
    """
    column = {node.id: 0 for node in nodes}
    after: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        if edge.source in column and edge.target in column:
            after[edge.source].append(edge.target)
    place: dict[int, int] = {}

    def visit(node: int) -> None:
        if node not in place:
            place[node] = 0
            for target in after[node]:
                visit(target)
            place[node] = -len(order)
            order.append(node)

    order: list[int] = []
    for node in nodes:
        visit(node.id)
    for source in reversed(order):
        for target in after[source]:
            if place[target] > place[source]:
                column[target] = max(column[target], column[source] + 1)
    return column


def _lanes(nodes: Iterable[SpreadNode], row: dict[int, int]) -> tuple[dict[int | None, float], float]:
    """Return where the first row of each rank is, from the top, and the height of all.

    The origin is on top, and collectives, which have no rank, below the middle.
    """
    deepest: dict[int | None, int] = {}
    for node in nodes:
        deepest[node.rank] = max(deepest.get(node.rank, 0), row[node.id])
    ranks = [rank for rank in deepest if rank is not None]
    lanes: list[int | None] = [*ranks[:1], *sorted(ranks[1:])]
    if None in deepest:
        lanes.insert((len(ranks) + 1) // 2, None)
    tops, below = {}, _TOP
    for rank in lanes:
        tops[rank] = below + (_BETWEEN / 2 if rank is None else _ABOVE)
        below = tops[rank] + deepest[rank] * _ROW + (_BETWEEN / 2 if rank is None else _ROW)
    return tops, below


def _drawn_edge(edge: SpreadEdge, nodes: tuple[SpreadNode, SpreadNode], begin: _Spot, end: _Spot) -> Markup:
    """Return an edge to the right; above what stands between its ends if they are in one row."""
    crosses = any(node.kind == PASSAGE for node in nodes)
    css = "edge" + " crossing" * crosses + " assumed" * edge.is_assumed
    hint = f"{edge.holds or 'bad'} in {edge.tensor}" if edge.tensor else "through a collective"
    lift = 24 if begin.y == end.y and end.x - begin.x > 1.5 * _COLUMN else 0
    middle = (begin.x + end.x) / 2
    bends = f"{middle - lift:.1f} {begin.y - lift:.1f} {middle + lift:.1f} {end.y - lift:.1f}"
    path = f"M{begin.x:.1f} {begin.y:.1f}C{bends} {end.x:.1f} {end.y:.1f}"
    return tag("path", tag("title", hint), d=path, class_=css)


def _drawn(node: SpreadNode, place: _Spot) -> tuple[Markup, Markup]:
    """Return a node, and its name."""
    x, y = place
    title, name = tag("title", node.label), short(node.op_type, _LABEL)
    if node.kind == PASSAGE:
        shape = tag("path", title, d=f"M{x - 8:.1f} {y:.1f}l8 -8l8 8l-8 8z", class_="node passage")
        return shape, text(x + 12, y + 4, name, "name")
    size, kind, css = (8, "origin", "strong mid") if node.id == 0 else (5.5, node.kind, "name mid")
    circle = tag("circle", title, cx=x, cy=y, r=size, class_=f"node {kind}")
    return circle, text(x, y + 20, name, css)
