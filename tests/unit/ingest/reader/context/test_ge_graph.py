"""Graphs that GE writes as text: edges, and the operators that were fused."""

from pathlib import Path

import pytest

import ingest
from ingest.reader.context.ge_graph import GeEdge, parse_ge_graph
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly

GRAPH = """graph {
  name: "Net"
  input: "data:0"
  op {
    name: "bert/mul"
    type: "Mul"
    input: "data:0"
    input: ""
    input: "init:-1"
    attr {
      key: "OUTPUT_IS_VAR"
      value {
        list {
          b: false
          val_type: VT_LIST_BOOL
        }
      }
    }
  }
  op{
    name: "add_bias_fused"
    type: "BiasAdd"
    input: "bert/mul:1"
    attr {
      key: "_datadump_original_op_names"
      value {
        list {
          s: "bert/add"
          s: "bert/bias"
          val_type: VT_LIST_STRING
        }
      }
    }
  }
  attr {
    key: "name"
    value { s: "not an operator" }
  }
}
"""


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_edges_and_fused_operators_are_read_from_pieces_of_any_size(size: int) -> None:
    data = GRAPH.encode()
    graph = parse_ge_graph(data[begin : begin + size] for begin in range(0, len(data), size))
    assert (graph.name, sorted(graph.ops)) == ("Net", ["add_bias_fused", "bert_mul"])
    assert graph.ops["bert_mul"].inputs == [GeEdge("data", 0), None]
    assert graph.ops["add_bias_fused"].inputs == [GeEdge("bert/mul", 1)]
    assert graph.ops["add_bias_fused"].originals == ["bert/add", "bert/bias"]


@pytest.mark.parametrize("text", ["", "}\n}\n}", "graph {\n op {\n", '{"graph": 1}', "\xff{\n}"])
def test_what_is_no_graph_has_no_operators(text: str) -> None:
    assert parse_ge_graph([text.encode("latin-1")]).ops == {}


def test_the_graph_tells_who_wrote_an_input_that_holds_other_bytes(made: MadeDump, store: Path) -> None:
    """Content cannot: the input was changed after it had been written."""
    run = MadeRun(made)
    run.op("Mul.bert_mul", [numbers(1)], [numbers(3, 4), numbers(5, 6)])
    run.op("BiasAdd.add_bias_fused", [numbers(5, 7)], [numbers(8, 9)])
    path = made.root / "rank_0" / "graphs" / "ge_proto_00000001_graph_0_Build.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(GRAPH)
    ingest_directly(made.root, store)
    opened = ingest.open_store(store)
    (read,) = opened.tensors("BiasAdd.*.input.0")
    (producer,) = read.producers
    assert (producer.tensor.name, producer.by) == ("Mul.bert_mul.output.1", "graph")
    assert ingest.context_of(opened, 0).original_names(read) == ("bert/add", "bert/bias")
