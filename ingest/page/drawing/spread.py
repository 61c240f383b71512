"""How something bad spread within its step: a lane for each rank, and collectives between the lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ingest.page.drawing.svg import picture, tag, text
from ingest.page.words import counted, short
from ingest.questions.origin.graph import SpreadEdge, SpreadGraph, SpreadNode

#: Nodes that are drawn; the nearest to the origin first.
_MAX_NODES = 48
_MAX_LANES = 10
_LANE, _COLUMN, _LEFT, _TOP = 74.0, 96.0, 78.0, 26.0
_LABEL = 15


@dataclass(frozen=True, slots=True)
class _Spot:
    x: float
    y: float


def spread_picture(graph: SpreadGraph) -> Markup | None:
    """Return the picture; None if nothing was reached."""
    shown = _shown(graph)
    if len(shown) < 2:
        return None
    lane = _lanes(shown)
    by_id = {node.id: node for node in shown}
    edges = _edges_between(by_id, graph)
    column = _columns(shown, [(edge.source, edge.target) for edge in edges])
    places = _places(shown, column, lane)
    width = _LEFT + (max(column.values()) + 1) * _COLUMN + 20
    height = _TOP + len(lane) * _LANE + 4
    parts = [part for rank, number in lane.items() for part in _drawn_lane(rank, number, width)]
    for edge in edges:
        nodes = by_id[edge.source], by_id[edge.target]
        parts.append(_drawn_edge(edge, nodes, (places[edge.source], places[edge.target])))
    parts += [part for node in shown for part in _drawn(node, places[node.id])]
    return picture(width, height, parts, _label(graph, len(shown)), class_="plot spread")


def _edges_between(nodes: Mapping[int, SpreadNode], graph: SpreadGraph) -> list[SpreadEdge]:
    return [edge for edge in graph.edges if edge.source in nodes and edge.target in nodes]


def _lanes(nodes: Sequence[SpreadNode]) -> dict[int, int]:
    """Return the number of the lane of each rank, from the top."""
    ranks = sorted({node.rank for node in nodes if node.rank is not None})
    return {rank: number for number, rank in enumerate(ranks)}


def _label(graph: SpreadGraph, drawn: int) -> str:
    label = f"The spread from {graph.nodes[0].label} to {counted(len(graph.nodes) - 1, 'operator')}"
    return f"{label}; the nearest {drawn} are drawn" if drawn < len(graph.nodes) else label


def _drawn_lane(rank: int, number: int, width: float) -> list[Markup]:
    y = _TOP + number * _LANE + 22
    return [
        tag("line", x1=_LEFT - 22, x2=width - 10, y1=y, y2=y, class_="lane"),
        text(8, y + 4, f"rank {rank}", class_="strong"),
    ]


def _drawn_edge(edge: SpreadEdge, nodes: tuple[SpreadNode, SpreadNode], ends: tuple[_Spot, _Spot]) -> Markup:
    crosses = any(node.kind == "passage" for node in nodes)
    css = "edge" + " crossing" * crosses + " assumed" * edge.is_assumed
    hint = f"{edge.holds or 'bad'} in {edge.tensor}" if edge.tensor else "through a collective"
    return tag("path", tag("title", hint), d=_curve(*ends), class_=css)


def _shown(graph: SpreadGraph) -> Sequence[SpreadNode]:
    """Return the nodes that are drawn: the nearest, on the first ranks, and the passages between them."""
    ranks: dict[int, None] = {}
    shown = []
    for node in graph.nodes:
        if node.rank is not None and node.rank not in ranks and len(ranks) >= _MAX_LANES:
            continue
        if node.rank is not None:
            ranks[node.rank] = None
        shown.append(node)
    passages = [node for node in shown if node.rank is None]
    return [node for node in shown if node.rank is not None][: _MAX_NODES - len(passages)] + passages


def _columns(nodes: Sequence[SpreadNode], edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return for each node the length of the longest way to it, so that every edge leads to the right."""
    before: dict[int, list[int]] = {}
    for source, target in edges:
        before.setdefault(target, []).append(source)
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


def _places(
    nodes: Sequence[SpreadNode], column: Mapping[int, int], lane: Mapping[int, int]
) -> dict[int, _Spot]:
    taken: dict[tuple[int, int], int] = {}
    places = {}
    middle = (len(lane) - 1) / 2
    for node in nodes:
        x = _LEFT + column[node.id] * _COLUMN
        if node.rank is None:
            places[node.id] = _Spot(x, _TOP + middle * _LANE + 22)
            continue
        spot = lane[node.rank], column[node.id]
        nth = taken.get(spot, 0)
        taken[spot] = nth + 1
        # Several in one place stand around it: above, below, above, ...
        side = (nth + 1) // 2 * (1 if nth % 2 else -1)
        places[node.id] = _Spot(x + 14 * (nth % 2), _TOP + lane[node.rank] * _LANE + 22 + 15 * side)
    return places


def _curve(begin: _Spot, end: _Spot) -> str:
    middle = (begin.x + end.x) / 2
    bends = f"C{middle:.1f} {begin.y:.1f} {middle:.1f} {end.y:.1f}"
    return f"M{begin.x:.1f} {begin.y:.1f}{bends} {end.x:.1f} {end.y:.1f}"


def _drawn(node: SpreadNode, place: _Spot) -> list[Markup]:
    if node.kind == "passage":
        shape = tag(
            "path",
            tag("title", node.label),
            d=f"M{place.x - 9:.1f} {place.y:.1f}l9 -9l9 9l-9 9z",
            class_="node passage",
        )
        return [shape, text(place.x, place.y - 14, short(node.op_type, _LABEL), class_="name mid")]
    css = "node origin" if node.id == 0 else f"node {node.kind}"
    circle = tag(
        "circle", tag("title", node.label), cx=place.x, cy=place.y, r=8 if node.id == 0 else 5.5, class_=css
    )
    words = "strong mid" if node.id == 0 else "name mid"
    return [circle, text(place.x, place.y + 20, short(node.op_type, _LABEL), class_=words)]
