"""Lanes of ranks, operators in them, and edges to the right."""

from __future__ import annotations

import re

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


def test_edges_lead_to_the_right() -> None:
    """The node with the longest way to it is the rightmost."""
    graph = SpreadGraph((node(0), node(1), node(2)), (edge(0, 2), edge(0, 1), edge(1, 2)))
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawn(graph))]
    assert places == sorted(places)
    assert len(set(places)) == 3
    for begin, end in re.findall(r'd="M([\d.]+) [\d.]+C.*? ([\d.]+) [\d.]+" class="edge', drawn(graph)):
        assert float(begin) < float(end)


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


def test_of_many_the_nearest_are_drawn_on_ten_lanes() -> None:
    many = SpreadGraph(tuple(node(number, number % 20) for number in range(100)))
    picture = drawn(many)
    assert picture.count("<circle") == 48
    assert picture.count('class="lane"') == 10
    assert "to 99 operators; the nearest 47 are drawn" in picture
