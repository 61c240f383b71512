"""Lanes of ranks, operators in them, and edges to the right."""

from __future__ import annotations

import re
from itertools import pairwise

from ingest.page.spread import spread_picture
from ingest.questions.origin.graph import OPERATOR, PASSAGE, SpreadEdge, SpreadGraph, SpreadNode


def node(number: int, rank: int | None = 0, kind: str = OPERATOR) -> SpreadNode:
    return SpreadNode(number, kind, rank, 2, "0", "Mul<", f"op{number}", 0)


def edge(source: int, target: int, *, assumed: bool = False) -> SpreadEdge:
    return SpreadEdge(source, target, "Mul.x.input.0", "NaN", assumed)


def drawn(graph: SpreadGraph) -> str:
    picture = spread_picture(graph)
    assert picture is not None
    return picture.svg


def test_what_reached_nothing_has_no_picture() -> None:
    assert spread_picture(SpreadGraph()) is None
    assert spread_picture(SpreadGraph((node(0),))) is None


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


def test_the_lane_of_the_origin_is_on_top() -> None:
    """On a narrow screen, the others may begin beyond its edge."""
    picture = drawn(SpreadGraph((node(0, 2), node(1, 0), node(2, 1)), (edge(0, 1), edge(0, 2))))
    assert re.findall(r">(rank \d)</text>", picture) == ["rank 2", "rank 0", "rank 1"]


def test_a_circle_through_a_collective_stays_next_to_it() -> None:
    """The operator that goes into a collective comes out of it, too."""
    nodes = (node(0), node(1), node(2, None, PASSAGE), node(3, 1), node(4, 1))
    edges = (edge(0, 1), edge(1, 2), edge(2, 1), edge(2, 3), edge(3, 2), edge(3, 4))
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawn(SpreadGraph(nodes, edges)))]
    assert [x - places[0] for x in places] == [0, 98, 294, 392]


def test_only_a_long_way_needs_a_sheet_on_its_side() -> None:
    for nodes, is_wide in ((8, False), (12, True)):
        picture = spread_picture(
            SpreadGraph(tuple(map(node, range(nodes))), tuple(edge(n, n + 1) for n in range(nodes - 1)))
        )
        assert picture is not None
        assert picture.is_wide is is_wide


def test_of_many_the_nearest_are_drawn_on_ten_lanes() -> None:
    many = SpreadGraph(tuple(node(number, number % 20) for number in range(100)))
    picture = drawn(many)
    assert picture.count("<circle") == 48
    assert picture.count('class="lane"') == 10
    assert "to 99 operators; the nearest 47 are drawn" in picture


def test_operators_in_one_place_stand_below_each_other_up_to_six() -> None:
    """An operator and its name take 30 pixels; what has no row is not drawn, and is counted."""
    graph = SpreadGraph(tuple(map(node, range(12))), tuple(edge(0, number) for number in range(1, 12)))
    picture = spread_picture(graph)
    assert picture is not None
    assert (picture.drawn, picture.total) == (6, 11)
    heights = [float(y) for y in re.findall(r'<circle .*?cy="([\d.]+)"', picture.svg)][1:]
    assert [after - before for before, after in pairwise(heights)] == [30.0] * 5


def test_a_collective_that_touches_nothing_drawn_is_left_out() -> None:
    nodes = tuple(map(node, range(48))), (node(48, 1), node(49, None, PASSAGE), node(50, 1))
    graph = SpreadGraph((*nodes[0], *nodes[1]), (edge(0, 1), edge(48, 49), edge(49, 50)))
    assert "passage" not in drawn(graph)


def test_an_edge_over_other_operators_passes_above_them() -> None:
    graph = SpreadGraph(tuple(map(node, range(3))), (edge(0, 1), edge(1, 2), edge(0, 2)))
    lifted = re.findall(r'd="M[\d.]+ ([\d.]+)C[\d.]+ ([\d.]+) ', drawn(graph))
    assert sorted(float(start) - float(bend) for start, bend in lifted) == [0, 0, 24]
