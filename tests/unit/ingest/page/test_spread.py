"""Lanes of ranks, operators in them, and edges to the right."""

from __future__ import annotations

from ingest.page.views.incidents import spread_picture
from ingest.questions.origin.graph import OPERATOR, PASSAGE, SpreadEdge, SpreadGraph, SpreadNode


def node(number: int, rank: int | None = 0, kind: str = OPERATOR) -> SpreadNode:
    return SpreadNode(number, kind, rank, 2, "0", "Mul<", f"op{number}", 0)


def edge(source: int, target: int, *, assumed: bool = False) -> SpreadEdge:
    return SpreadEdge(source, target, "Mul.x.input.0", "NaN", assumed)


def drawn(graph: SpreadGraph) -> str:
    picture = spread_picture(graph)
    assert picture is not None
    return picture.svg


def test_a_circle_of_edges_is_drawn_and_does_not_hang() -> None:
    graph = SpreadGraph((node(0), node(1), node(2)), (edge(0, 1), edge(1, 2), edge(2, 1)))
    assert drawn(graph).count("<circle") == 3


def test_ranks_have_lanes_and_collectives_lie_between_them() -> None:
    nodes = (node(0), node(1, None, PASSAGE), node(2, 1))
    picture = drawn(SpreadGraph(nodes, (edge(0, 1), edge(1, 2, assumed=True))))
    assert picture.count('class="lane"') == 2
    assert ">rank 1</text>" in picture
    assert picture.count('class="node passage"') == 1
    assert 'class="edge crossing assumed"' in picture
    assert "Mul&lt;" in picture
    assert "Mul<" not in picture
