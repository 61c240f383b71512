"""Graphs that GE writes as text: edges, the operators that were fused, and which graph trains."""

import json
from pathlib import Path

import pytest

import ingest
from ingest.reader.context.ge_graph import ModelOutput, _Parser, choose_training_graph, parse_ge_graph
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


def built(name: str, op_type: str) -> bytes:
    return f'graph {{\n  name: "{name}"\n  op {{\n    name: "x"\n    type: "{op_type}"\n  }}\n}}\n'.encode()


def asked(*models: str) -> bytes:
    entries = [{"model_name": model, "layer": ["x"]} for model in models]
    return json.dumps({"dump": {"dump_list": [*entries, {}, 3], "dump_path": "/d"}}).encode()


@pytest.mark.parametrize(
    ("candidates", "graphs", "configurations", "name", "rule"),
    [
        ({"a": 1}, [], [], "a", "the only graph of the step"),
        ({}, [], [], None, "no graph"),
        (
            {"a": 9, "ge_default_1": 1},
            [built("a", "Add"), built("ge/default.1", "IteratorV2"), built("c", "GetNext"), b"graph {\n}"],
            [asked("a")],
            *("ge_default_1", "named like the built graph with an iterator"),
        ),
        ({"a": 9, "b": 1}, [built("b", "Add")], [], "b", "named like the only built graph of the step"),
        ({"a": 9, "b": 1}, [], [asked("b", "z")], "b", "the only graph that the dump configuration names"),
        ({"a": 9, "b": 1}, [], [asked("a", "b")], "a", "the graph with the most tensors"),
        ({"a": 9, "b": 1}, [b"\xff"], [b"{", b"[1]", b"[" * 100_000], "a", "the graph with the most tensors"),
        ({"a": 9, "b": 9}, [], [], None, "nothing tells them apart"),
    ],
)
def test_training_graph_is_chosen_by_the_first_rule_that_decides(
    candidates: dict[str, int], graphs: list[bytes], configurations: list[bytes], name: str | None, rule: str
) -> None:
    chosen = choose_training_graph(candidates, graphs, configurations)
    assert (chosen.name, chosen.rule, chosen.candidates) == (name, rule, candidates)
