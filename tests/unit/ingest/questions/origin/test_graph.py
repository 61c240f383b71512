"""The whole spread, with every edge."""

from pathlib import Path

import pytest

from ingest.questions.origin import OriginAnswer
from tests.dumps import DumpLibrary
from tests.origin_runs import origin_of


@pytest.fixture(scope="module")
def answer(dumps: DumpLibrary, tmp_path_factory: pytest.TempPathFactory) -> OriginAnswer:
    """The origin in a run of two ranks."""
    store: Path = tmp_path_factory.mktemp("graph") / "run.zarr"
    return origin_of(dumps["nan-sqrt-2rank"] / "dump", store)


def test_it_has_every_operator_of_the_spread(answer: OriginAnswer) -> None:
    graph = answer.spread.graph
    operators = [node for node in graph.nodes if node.kind == "operator"]
    assert len(operators) == answer.spread.operators + 1
    assert (graph.nodes[0].op_type, graph.nodes[0].rank) == (answer.op_type, answer.rank)
    assert [node.id for node in graph.nodes] == list(range(len(graph.nodes)))


def test_dot_has_every_node_and_edge(answer: OriginAnswer) -> None:
    graph = answer.spread.graph
    lines = list(graph.to_dot())
    assert (lines[0], lines[-1]) == ("digraph spread {", "}")
    assert sum(" -> " in line for line in lines) == len(graph.edges)
    assert len(lines) == len(graph.nodes) + len(graph.edges) + 2
