"""Incidents: a card for each NaN, Inf, overflow, divergence or rule; and the layout of a step, on demand.

How something bad spread within its step is drawn as a lane for each rank, with collectives between the lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ingest.findings.incidents import Incident
from ingest.findings.incidents.incident import IncidentKind
from ingest.page.asking import AnswerLine, Asked, Screen, UrlParameter, lines
from ingest.page.cells import timeline_picture
from ingest.page.charts import picture, tag, text
from ingest.page.rendering import counted, short
from ingest.questions.divergence import divergence
from ingest.questions.origin import OriginTensor
from ingest.questions.origin.graph import PARAMETER, PASSAGE, SpreadEdge, SpreadGraph, SpreadNode
from ingest.questions.placement.layout_answer import LayoutFinding, RunLayout
from ingest.questions.placement.within import layout
from workers.errors import DamagedStore, UsageError

#: Cards, and links to the tensor on its ranks in each; `layout` prints all.
_MISTAKES, _LINKS = 12, 8


@dataclass(frozen=True, slots=True)
class LayoutCheck:
    """What a screen shows of the layout of a step."""

    url: str
    """Of the screen that shows it."""
    step: int
    line: AnswerLine
    answer: RunLayout | None = None
    """None if it is not asked for, or fails."""
    cards: tuple[dict[str, Any], ...] = ()
    problem: str = ""

    @property
    def looked_at(self) -> str:
        """How many tensors it is about, of how many kinds."""
        kinds = self.answer.kinds if self.answer is not None else ()
        total = sum(kind.tensors for kind in kinds)
        return f"{counted(total, 'tensor')} of {counted(len(kinds), 'kind')}"


def layout_check(asked: Asked, step: int | None) -> LayoutCheck | None:
    """Return the layout of a step, by default the last, if `layout` asks for it, else a link to it.

    Returns None if the run has a single rank, or no step. It costs the indexes of one step of all ranks, and
    the elements of the tensors that differ from rank to rank: of large ones, parts.
    """
    moment = asked.moment
    step = moment.numbers[-1] if step is None and moment.numbers else step
    if step is None or len(moment.ranks) < 2:
        return None
    url = asked.links.view("incidents", step=step, layout=1)
    line = AnswerLine.of(
        ("layout", asked.url, "--step", step, "--include-partial"),
        f"ingest.layout(store, {step}, include_partial=True)",
    )
    if not asked.arguments.flag("layout"):
        return LayoutCheck(url, step, line)
    try:
        answer = layout(moment.store, step, include_partial=True)
    except (UsageError, DamagedStore) as exc:
        return LayoutCheck(url, step, line, problem=exc.message)
    cards = tuple(_mistake_card(asked, finding) for finding in answer.findings[:_MISTAKES])
    return LayoutCheck(url, step, line, answer, cards)


def _mistake_card(asked: Asked, finding: LayoutFinding) -> dict[str, Any]:
    links = [
        (rank, asked.links.view("tensor", rank=rank, step=finding.step, name=finding.name))
        for rank in finding.ranks[:_LINKS]
    ]
    return {"finding": finding, "links": links}


#: Cards on the page; the rest are named in a table.
_CARDS = 12
_ELEMENTS = 6


def show(asked: Asked) -> dict[str, Any]:
    """Return the incidents, the worst first, or a single one."""
    wanted = asked.arguments.text("id")
    rank, step = asked.arguments.integer("rank"), asked.arguments.integer("step")
    answer = asked.moment.incidents(rank, step, incident=wanted)
    check = layout_check(asked, step)
    place = {name: number for name, number in (("rank", rank), ("step", step)) if number is not None}
    listed = answer.incidents
    return {
        "wanted": wanted,
        "seen": ", ".join(f"{name} {number}" for name, number in place.items()),
        "cards": [
            card(asked, incident) | {"misplaced": _misplaced(asked, incident) if wanted else ()}
            for incident in listed[:_CARDS]
        ],
        "rest": listed[_CARDS:],
        "total": len(answer.incidents),
        "by_severity": answer.by_severity,
        "left_out": answer.left_out,
        "damaged": answer.damaged,
        "not_evaluated": answer.not_evaluated,
        "check": check,
        "steps": asked.moment.numbers,
        "ranks": asked.moment.ranks,
        "lines": lines(
            asked,
            *_answer_lines(asked, place, listed if wanted else []),
            *((check.line,) if check is not None and check.answer is not None else ()),
        ),
    }


def _answer_lines(asked: Asked, place: dict[str, int], wanted: Sequence[Incident]) -> Iterator[AnswerLine]:
    """Yield the line for the incidents of a rank and step, or of all; for one by its id, its origin, too."""
    yield _line(asked, place, "".join(incident.id for incident in wanted))
    for incident in wanted:
        if incident.origin is not None and incident.rank is not None:
            where = ("--rank", incident.rank, "--step", incident.first_step, "--include-partial")
            given = f"rank={incident.rank}, step={incident.first_step}, include_partial=True"
            yield AnswerLine.of(("origin", asked.url, *where), f"ingest.origin(store, {given})")


def _line(asked: Asked, place: dict[str, int], wanted: str) -> AnswerLine:
    options = [word for name, number in place.items() for word in (f"--{name}", number)]
    given = "".join(f", {name}={number}" for name, number in place.items())
    if wanted:
        options += ["--id", wanted]
        given += f", incident={wanted!r}"
    return AnswerLine.of(("anomalies", asked.url, *options), f"ingest.incidents(store{given}).incidents")


def card(asked: Asked, incident: Incident) -> dict[str, Any]:
    """Return the contents of a card."""
    answer = incident.origin
    spread = answer.spread if answer is not None and answer.found else None
    steps = asked.moment.numbers
    return {
        "incident": incident,
        "misplaced": (),
        "origin": answer,
        "before": _tensors(asked, incident, answer.inputs if answer else ()),
        "after": _tensors(asked, incident, answer.outputs if answer else ()),
        "why": answer.why if answer else None,
        "elements": answer.why.elements[:_ELEMENTS] if answer and answer.why else (),
        "picture": spread_picture(spread.graph) if spread is not None else None,
        "spread": spread,
        "timeline": timeline_picture(
            steps,
            _affected(incident, steps),
            f"{incident.kind}: first in step {incident.first_step}, last in step {incident.last_step}",
        ),
        "url": asked.links.view("incidents", id=incident.id),
        **_where_to_look(asked, incident),
    }


def _where_to_look(asked: Asked, incident: Incident) -> dict[str, str]:
    """Return a link to the operators of the first step; to the matrix if no rank, or not this one, has it."""
    rank, step = incident.rank, incident.first_step
    if rank is not None and step in asked.moment.steps_of(rank):
        return {
            "look_url": asked.links.view("cell", rank=rank, step=step),
            "look_words": "operators in order of execution",
        }
    steps = f"{step}-{incident.last_step}"
    return {"look_url": asked.links.view("matrix", steps=steps), "look_words": "matrix of these steps"}


def _misplaced(asked: Asked, incident: Incident) -> tuple[LayoutFinding, ...]:
    """Return the misplaced tensors in the first step of a divergence, as `layout` finds them."""
    if incident.kind is not IncidentKind.DIVERGENCE:
        return ()
    try:
        answer = divergence(asked.moment.store, step=incident.first_step, include_partial=True)
    except (UsageError, DamagedStore):  # a single rank of it is left; the card tells the rest
        return ()
    return answer.misplaced


def _tensors(asked: Asked, incident: Incident, tensors: Sequence[OriginTensor]) -> list[dict[str, Any]]:
    view, rank, step, graph = asked.links.view, incident.rank, incident.first_step, incident.graph
    return [
        {
            "tensor": tensor,
            "statistics": tensor.statistics,
            "url": view("tensor", rank=rank, step=step, name=tensor.name, graph=graph),
        }
        for tensor in tensors
    ]


def _affected(incident: Incident, steps: Sequence[int]) -> set[int]:
    """Return the steps in which an incident was seen, as far as it tells."""
    spread = incident.origin.spread if incident.origin is not None else None
    if spread is not None and spread.steps:
        return {incident.first_step, *(later.step for later in spread.steps)}
    return {step for step in steps if incident.first_step <= step <= incident.last_step}


SCREEN = Screen(
    "incidents",
    "Incidents",
    "incidents.html.j2",
    (
        UrlParameter("id", "string", "Only the incident with this id."),
        UrlParameter("rank", "integer", "Only incidents that were seen on this rank."),
        UrlParameter("step", "integer", "Only incidents that were seen in this step."),
        UrlParameter(
            "layout", "boolean", "Also say what ranks hold and should not, in this or the last step."
        ),
    ),
    show,
    lambda asked: asked.flag("layout"),
)


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


@dataclass(frozen=True, slots=True)
class SpreadPicture:
    """The picture, and how much of the graph is in it."""

    svg: Markup
    is_wide: bool
    """Whether it needs a sheet of paper that lies on its side."""
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
class _Standing:
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
    width = max(place.x for place in places.values()) + _COLUMN
    parts = _drawn_lanes(lane, tops, width)
    parts += _drawn_edges(_edges_between(shown, graph), {node.id: node for node in shown}, places)
    parts += [part for node in shown for part in _drawn(node, places[node.id])]
    kinds = {node.kind for node in shown}
    svg = picture(width, height, parts, _label(graph, len(shown) - 1), class_="plot spread")
    drawn, total = len(shown) - 1, len(graph.nodes) - 1
    return SpreadPicture(svg, width > _UPRIGHT, drawn, total, PASSAGE in kinds, PARAMETER in kinds)


def _label(graph: SpreadGraph, drawn: int) -> str:
    total = len(graph.nodes) - 1
    label = f"The spread from {graph.nodes[0].label} to {counted(total, 'operator')}"
    return f"{label}; the nearest {drawn} are drawn" if drawn < total else label


def _nearest(graph: SpreadGraph) -> Sequence[SpreadNode]:
    """Return the nodes nearest to the origin, on the first ranks, and the collectives next to them."""
    near = _operators_near(graph)
    touching = [edge for edge in graph.edges if edge.source in near or edge.target in near]
    beside = {end for edge in touching for end in (edge.source, edge.target)}
    return [node for node in graph.nodes if node.id in (beside if node.rank is None else near)]


def _operators_near(graph: SpreadGraph) -> set[int]:
    operators = [node for node in graph.nodes if node.rank is not None]
    ranks = list(dict.fromkeys(node.rank for node in operators))[:_MAX_LANES]
    on_ranks = [node.id for node in operators if node.rank in ranks]
    return set(on_ranks[:_MAX_NODES])


def _edges_between(nodes: Iterable[SpreadNode], graph: SpreadGraph) -> list[SpreadEdge]:
    ids = {node.id for node in nodes}
    return [edge for edge in graph.edges if edge.source in ids and edge.target in ids]


def _lanes(nodes: Sequence[SpreadNode]) -> dict[int, int]:
    """Return the number of the lane of each rank: the origin on top, collectives below the middle."""
    ranks = list(dict.fromkeys(node.rank for node in nodes if node.rank is not None))
    below = (len(ranks) + 1) // 2
    from_top = ranks[:1] + sorted(ranks[1:])
    return {rank: number + (number >= below) for number, rank in enumerate(from_top)}


def _lane_of(node: SpreadNode, lane: Mapping[int, int]) -> int:
    return (len(lane) + 1) // 2 if node.rank is None else lane[node.rank]


def _columns(nodes: Sequence[SpreadNode], edges: Sequence[SpreadEdge]) -> dict[int, int]:
    """Return for each node the length of the longest way to it, so that edges lead to the right.

    An edge back into a circle does not count: a collective reads what it writes on some ranks.
    """
    after: dict[int, list[int]] = {node.id: [] for node in nodes}
    for edge in edges:
        after[edge.source].append(edge.target)
    order = _last_to_first([node.id for node in nodes], after)[::-1]
    place = {node: number for number, node in enumerate(order)}
    column = dict.fromkeys(order, 0)
    for node in order:
        for target in after[node]:
            if place[target] > place[node]:
                column[target] = max(column[target], column[node] + 1)
    return column


def _last_to_first(nodes: Sequence[int], after: Mapping[int, Sequence[int]]) -> list[int]:
    """Return nodes so that each comes after those it leads to, unless they lead back to it."""
    done: list[int] = []
    seen: set[int] = set()
    for root in nodes:
        way = [(root, iter(after[root]))] if root not in seen else []
        seen.add(root)
        while way:
            node, targets = way[-1]
            target = next((target for target in targets if target not in seen), None)
            if target is None:
                done.append(node)
                way.pop()
            else:
                seen.add(target)
                way.append((target, iter(after[target])))
    return done


def _rows(nodes: Sequence[SpreadNode], columns: Mapping[int, int]) -> dict[int, _Standing]:
    """Return where each node stands that has a row of its own; the others are not drawn."""
    taken: Counter[tuple[int | None, int]] = Counter()
    rows = {}
    for node in nodes:
        spot = node.rank, columns[node.id]
        if taken[spot] < _MAX_ROWS:
            rows[node.id] = _Standing(columns[node.id], taken[spot])
            taken[spot] += 1
    return rows


def _tops(
    nodes: Sequence[SpreadNode], lane: Mapping[int, int], rows: Mapping[int, _Standing]
) -> tuple[dict[int, float], float]:
    """Return where the first row of each lane is, from the top, and the height of all."""
    deepest: dict[int, int] = {}
    for node in nodes:
        number = _lane_of(node, lane)
        deepest[number] = max(deepest.get(number, 0), rows[node.id].number)
    passages = (len(lane) + 1) // 2
    tops, below = {}, _TOP
    for number in sorted(deepest):
        tops[number] = below + (_BETWEEN / 2 if number == passages else _ABOVE)
        below = tops[number] + deepest[number] * _ROW + (_BETWEEN / 2 if number == passages else _ROW)
    return tops, below


def _place(row: _Standing, top: float) -> _Spot:
    return _Spot(_LEFT + row.column * _COLUMN, top + row.number * _ROW)


def _drawn_lanes(lane: Mapping[int, int], tops: Mapping[int, float], width: float) -> list[Markup]:
    parts = []
    for rank, number in lane.items():
        y = tops[number]
        parts.append(tag("line", x1=_LEFT - 22, x2=width - 10, y1=y, y2=y, class_="lane"))
        parts.append(text(8, y + 4, f"rank {rank}", class_="strong"))
    return parts


def _drawn_edges(
    edges: Sequence[SpreadEdge], nodes: Mapping[int, SpreadNode], places: Mapping[int, _Spot]
) -> list[Markup]:
    return [
        _drawn_edge(
            edge, (nodes[edge.source], nodes[edge.target]), (places[edge.source], places[edge.target])
        )
        for edge in edges
    ]


def _drawn_edge(edge: SpreadEdge, nodes: tuple[SpreadNode, SpreadNode], ends: tuple[_Spot, _Spot]) -> Markup:
    crosses = any(node.kind == PASSAGE for node in nodes)
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
    if node.kind == PASSAGE:
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
