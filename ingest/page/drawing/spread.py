"""How something bad spread within its step: a lane for each rank, and collectives between the lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ingest.page.drawing.svg import picture, tag, text
from ingest.page.words import counted, short
from ingest.questions.origin.graph import SpreadEdge, SpreadGraph, SpreadNode

#: Nodes that are drawn; the nearest to the origin first.
_MAX_NODES = 48
_MAX_LANES = 10
#: Operators of one rank that are drawn below each other.
_MAX_ROWS = 8
_LEFT, _TOP, _COLUMN, _ROW = 78.0, 4.0, 98.0, 36.0
#: Above the first row of a lane, where edges pass over operators; and the row of a collective between lanes.
_ABOVE, _PASSAGE = 26.0, 26.0
_LABEL = 15


@dataclass(frozen=True, slots=True)
class SpreadPicture:
    """The picture, and how much of the graph is in it."""

    svg: Markup
    drawn: int
    """Operators besides the origin, parameters and collectives."""
    total: int
    has_passages: bool
    has_parameters: bool


@dataclass(frozen=True, slots=True)
class _Spot:
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a node stands: its column, and its place among the nodes of its lane and column."""

    column: int
    number: int


def spread_picture(graph: SpreadGraph) -> SpreadPicture | None:
    """Return the picture; None if nothing was reached."""
    nearest = _nearest(graph)
    lane = _lanes(nearest)
    rows = _rows(nearest, _columns(nearest, _edges_between(nearest, graph)))
    shown = [node for node in nearest if node.id in rows]
    if len(shown) < 2:
        return None
    tops, height = _tops(shown, lane, rows)
    places = {node.id: _place(rows[node.id], tops[_lane_of(node, lane)]) for node in shown}
    width = _LEFT + (max(row.column for row in rows.values()) + 1) * _COLUMN
    parts = [part for rank, number in lane.items() for part in _drawn_lane(rank, tops[number], width)]
    by_id = {node.id: node for node in shown}
    for edge in _edges_between(shown, graph):
        nodes = by_id[edge.source], by_id[edge.target]
        parts.append(_drawn_edge(edge, nodes, (places[edge.source], places[edge.target])))
    parts += [part for node in shown for part in _drawn(node, places[node.id])]
    drawn, total = len(shown) - 1, len(graph.nodes) - 1
    label = f"The spread from {graph.nodes[0].label} to {counted(total, 'operator')}"
    label += f"; the nearest {drawn} are drawn" if drawn < total else ""
    kinds = {node.kind for node in shown}
    return SpreadPicture(
        picture(width, height, parts, label, class_="plot spread"),
        drawn,
        total,
        has_passages="passage" in kinds,
        has_parameters="parameter" in kinds,
    )


def _nearest(graph: SpreadGraph) -> Sequence[SpreadNode]:
    """Return the nodes nearest to the origin, on the first ranks, and the collectives next to them."""
    ranks: dict[int, None] = {}
    near: dict[int, SpreadNode] = {}
    for node in graph.nodes:
        if node.rank is None or (node.rank not in ranks and len(ranks) >= _MAX_LANES):
            continue
        ranks[node.rank] = None
        near[node.id] = node
        if len(near) == _MAX_NODES:
            break
    beside = {edge.source for edge in graph.edges if edge.target in near}
    beside |= {edge.target for edge in graph.edges if edge.source in near}
    return [node for node in graph.nodes if node.id in near or (node.rank is None and node.id in beside)]


def _edges_between(nodes: Iterable[SpreadNode], graph: SpreadGraph) -> list[SpreadEdge]:
    ids = {node.id for node in nodes}
    return [edge for edge in graph.edges if edge.source in ids and edge.target in ids]


def _lanes(nodes: Sequence[SpreadNode]) -> dict[int, int]:
    """Return the number of the lane of each rank, from the top; collectives have one below the middle."""
    ranks = sorted({node.rank for node in nodes if node.rank is not None})
    below = (len(ranks) + 1) // 2
    return {rank: number + (number >= below) for number, rank in enumerate(ranks)}


def _lane_of(node: SpreadNode, lane: Mapping[int, int]) -> int:
    return (len(lane) + 1) // 2 if node.rank is None else lane[node.rank]


def _columns(nodes: Sequence[SpreadNode], edges: Sequence[SpreadEdge]) -> dict[int, int]:
    """Return for each node the length of the longest way to it, so that every edge leads to the right."""
    before: dict[int, list[int]] = {}
    for edge in edges:
        before.setdefault(edge.target, []).append(edge.source)
    column = dict.fromkeys((node.id for node in nodes), 0)
    for _ in nodes:  # a graph without circles settles; one with a circle is cut off here
        settled = True
        for node in nodes:
            least = max((column[source] + 1 for source in before.get(node.id, ())), default=0)
            if column[node.id] < least <= len(nodes):
                column[node.id], settled = least, False
        if settled:
            break
    used = {old: new for new, old in enumerate(sorted(set(column.values())))}
    return {node: used[old] for node, old in column.items()}


def _rows(nodes: Sequence[SpreadNode], columns: Mapping[int, int]) -> dict[int, _Row]:
    """Return where each node stands that has a row of its own; the others are not drawn."""
    taken: Counter[tuple[int | None, int]] = Counter()
    rows = {}
    for node in nodes:
        spot = node.rank, columns[node.id]
        if taken[spot] < _MAX_ROWS:
            rows[node.id] = _Row(columns[node.id], taken[spot])
            taken[spot] += 1
    return rows


def _tops(
    nodes: Sequence[SpreadNode], lane: Mapping[int, int], rows: Mapping[int, _Row]
) -> tuple[dict[int, float], float]:
    """Return where the first row of each lane is, from the top, and the height of all."""
    deepest: dict[int, int] = {}
    for node in nodes:
        number = _lane_of(node, lane)
        deepest[number] = max(deepest.get(number, 0), rows[node.id].number)
    passages = (len(lane) + 1) // 2
    tops, below = {}, _TOP
    for number in sorted(deepest):
        tops[number] = below + (_PASSAGE / 2 if number == passages else _ABOVE)
        below = tops[number] + deepest[number] * _ROW + (_PASSAGE / 2 if number == passages else _ROW)
    return tops, below


def _place(row: _Row, top: float) -> _Spot:
    return _Spot(_LEFT + row.column * _COLUMN, top + row.number * _ROW)


def _drawn_lane(rank: int, y: float, width: float) -> list[Markup]:
    return [
        tag("line", x1=_LEFT - 22, x2=width - 10, y1=y, y2=y, class_="lane"),
        text(8, y + 4, f"rank {rank}", class_="strong"),
    ]


def _drawn_edge(edge: SpreadEdge, nodes: tuple[SpreadNode, SpreadNode], ends: tuple[_Spot, _Spot]) -> Markup:
    crosses = any(node.kind == "passage" for node in nodes)
    css = "edge" + " crossing" * crosses + " assumed" * edge.is_assumed
    hint = f"{edge.holds or 'bad'} in {edge.tensor}" if edge.tensor else "through a collective"
    return tag("path", tag("title", hint), d=_curve(*ends), class_=css)


def _curve(begin: _Spot, end: _Spot) -> str:
    """Return a path to the right; above what stands between its ends if they are in one row."""
    lift = 24 if begin.y == end.y and end.x - begin.x > 1.5 * _COLUMN else 0
    middle = (begin.x + end.x) / 2
    bends = (
        f"C{middle - lift:.1f} {begin.y - lift:.1f} {middle + lift:.1f} {end.y - lift:.1f}"
        if lift
        else f"C{middle:.1f} {begin.y:.1f} {middle:.1f} {end.y:.1f}"
    )
    return f"M{begin.x:.1f} {begin.y:.1f}{bends} {end.x:.1f} {end.y:.1f}"


def _drawn(node: SpreadNode, place: _Spot) -> list[Markup]:
    if node.kind == "passage":
        shape = tag(
            "path",
            tag("title", node.label),
            d=f"M{place.x - 8:.1f} {place.y:.1f}l8 -8l8 8l-8 8z",
            class_="node passage",
        )
        return [shape, text(place.x + 12, place.y + 4, short(node.op_type, _LABEL), class_="name")]
    css = "node origin" if node.id == 0 else f"node {node.kind}"
    circle = tag(
        "circle", tag("title", node.label), cx=place.x, cy=place.y, r=8 if node.id == 0 else 5.5, class_=css
    )
    words = "strong mid" if node.id == 0 else "name mid"
    return [circle, text(place.x, place.y + 20, short(node.op_type, _LABEL), class_=words)]
