"""Graphs that GE writes as text: edges, the operators that were fused, and which graph trains."""

from pathlib import Path

import pytest

import ingest
from ingest.reader.context.ge_graph import ModelOutput, _Parser, parse_ge_graph
from ingest.reader.context.ir import IrSource
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly

GE = """name: "ge_default"
graph {
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
    output_desc {
      name: "y"
      dtype: DT_FLOAT
      attr {
        key: "_datadump_origin_name"
        value {
          s: "bert/mask"
        }
      }
    }
    output_desc {
      attr {
        key: "_datadump_origin_name"
        value {
          s: "bert/bias"
        }
      }
      attr {
        key: "_datadump_origin_output_index"
        value {
          i: 2
        }
      }
      attr {
        key: "_reuse"
        value {
          i: 7
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


#: As `ge_ir_utils.cc` of GraphEngine writes it: a subgraph is a node with the attribute `graph`.
ONNX = """ir_version: 6
producer_name: "model"
graph {
  node {
    input: "data:0"
    input: ""
    input: "init:-1"
    output: "bert/mul:1"
    name: "bert/mul"
    op_type: "ge:Mul"
    attribute {
      name: "_op_kernel_lib"
      s: "AIcoreEngine"
      type: STRING
    }
  }
  node {
    input: "bert/mul:1"
    name: "add_bias_fused"
    op_type: "ge:BiasAdd"
    attribute {
      name: "_datadump_original_op_names"
      strings: "bert/add"
      strings: "bert/bias"
      type: STRINGS
    }
    attribute {
      name: "input_desc_dtype:0"
      s: "DT_FLOAT"
      type: STRING
    }
    attribute {
      name: "output_desc_attr__datadump_origin_name:0"
      s: "bert/mask"
      type: STRING
    }
    attribute {
      name: "output_desc_attr__datadump_origin_output_index:1"
      i: 2
      type: INT
    }
    attribute {
      name: "output_desc_attr__datadump_origin_name:1"
      s: "bert/bias"
      type: STRING
    }
  }
  node {
    name: "then"
    op_type: "subgraph"
    attribute {
      name: "graph"
      g {
        node {
          input: "add_bias_fused:0"
          name: "then/\\346\\261\\202\\345\\222\\214"
          op_type: "ge:Sum"
        }
        name: "then"
      }
      type: GRAPH
    }
  }
  name: "Net"
  input {
    name: "data"
  }
}
"""


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("text", [GE, ONNX], ids=["ge", "onnx"])
def test_edges_and_fused_operators_are_read_from_pieces_of_any_size(text: str, size: int) -> None:
    data = text.encode()
    graph = parse_ge_graph(data[begin : begin + size] for begin in range(0, len(data), size))
    assert graph.name == "Net"
    assert graph.ops["bert_mul"].op_type == "Mul"
    assert graph.ops["bert_mul"].inputs == [IrSource("data", 0), None]
    assert graph.ops["bert_mul"].originals == []
    assert graph.ops["add_bias_fused"].inputs == [IrSource("bert/mul", 1)]
    assert graph.ops["add_bias_fused"].originals == ["bert/add", "bert/bias"]
    # The graph does not say which output of `bert/mask` the output 0 is.
    outputs = [graph.ops["add_bias_fused"].model_output(slot) for slot in range(3)]
    assert outputs == [None, ModelOutput("bert/bias", 2), None]


def test_a_million_open_blocks_cost_nothing() -> None:
    parser = _Parser()
    for _ in range(1_000_000):
        parser.take("op {")
    assert (len(parser.blocks), parser.deeper) == (16, 1_000_000 - 16)


@pytest.mark.parametrize(
    ("name", "text"),
    [("ge_proto_00000001_graph_0_Build.txt", GE), ("ge_onnx_00000001_graph_0_Build.pbtxt", ONNX)],
)
def test_the_graph_tells_who_wrote_an_input_that_holds_other_bytes(
    made: MadeDump, store: Path, name: str, text: str
) -> None:
    """Content cannot: the input was changed after it had been written."""
    run = MadeRun(made)
    run.op("Mul.bert_mul", [numbers(1)], [numbers(3, 4), numbers(5, 6)])
    run.op("BiasAdd.add_bias_fused", [numbers(5, 7)], [numbers(8, float("nan"))])
    path = made.root / "rank_0" / "graphs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    ingest_directly(made.root, store)
    opened = ingest.open_store(store)
    (read,) = opened.tensors("BiasAdd.*.input.0")
    (producer,) = read.producers
    assert (producer.tensor.name, producer.by) == ("Mul.bert_mul.output.1", "graph")
    assert producer.to_dict()["fused_from"] == []
    (reader,) = producer.tensor.consumers
    assert reader.fused_from == ("bert/add", "bert/bias")
    assert ingest.context_of(opened, 0).original_names(read) == ("bert/add", "bert/bias")
    origin = ingest.origin(opened)
    assert (origin.op_name, origin.fused_from) == ("add_bias_fused", ("bert/add", "bert/bias"))
    assert "  fused from bert/add, bert/bias" in str(origin).splitlines()
    assert origin.to_dict()["fused_from"] == ["bert/add", "bert/bias"]
