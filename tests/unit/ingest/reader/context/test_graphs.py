"""Graphs of MindSpore and GE, as text and as protobuf."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ingest
from ingest.reader.context.files import Frame
from ingest.reader.context.ge_graph import ModelOutput, _Parser, parse_ge_graph
from ingest.reader.context.ir import ArgumentReader, IrSource, parse_ir
from ingest.reader.context.rank_context import parse_order
from tests.stores import DumpLibrary, MadeDump, MadeRun, ingest_and_open, numbers

# Names, stacks, types and edges out of `.ir` files of every spelling.


_RELU = """\
  %1(equiv_5_output) = ReLU(%0) {instance name: relu}
      : (<Tensor[Float32], (2, 4, 6)>, <Int64, NoShape>) -> (<Tensor[Bool], ()>)
      : (Tensor, Scalar) -> (Tensor)
"""


_NAME = "Default/net-Net/relu-ReLU/ReLU-op0"


_NEW_NAME = f"      # Fullname with scope: ({_NAME})\n"


_USER = Frame("/srv/net.py", 22, "return self.relu(x)")


_LIBRARY = Frame(
    "/env/lib/python3.11/site-packages/mindspore/nn/layer/activation.py", 297, "return self.f(x)"
)


_NEW_STACK = (
    f"      # In file {_USER.file}:22~24, 4~58/        {_USER.code}/\n"
    f"      # In file {_LIBRARY.file}:297, 15~34/    {_LIBRARY.code}/<~~This line of code can be shared/\n"
)


def _ir(text: str) -> bytes:
    return text.encode()


@pytest.mark.parametrize(
    "name",
    [_NEW_NAME, f"      : full_name_with_scope: ({_NAME})\n", f"      : ({_NAME})\n"],
    ids=["new", "2.0", "1.x"],
)
def test_a_name_is_found_in_each_of_its_spellings(name: str) -> None:
    graph = parse_ir([_ir(_RELU + name + _NEW_STACK)])
    assert list(graph.ops) == [_NAME]
    assert graph.ops[_NAME].stack == (_USER, _LIBRARY)
    assert not graph.problems


@pytest.mark.parametrize(
    "stack",
    [
        _NEW_STACK,
        (
            f"      # In file {_USER.file}:22/      {_USER.code}/\n"
            f"      # inlined:In file {_LIBRARY.file}:297/      {_LIBRARY.code}/\n"
        ),
        # 1.x: the other way round
        (
            f"      # In file {_LIBRARY.file}(297)/      {_LIBRARY.code}/\n"
            f"      # In file {_USER.file}(22)/      {_USER.code}/\n"
        ),
    ],
    ids=["new", "2.0", "1.x"],
)
def test_a_stack_goes_from_outermost_to_innermost_in_each_spelling(stack: str) -> None:
    assert parse_ir([_ir(_RELU + _NEW_NAME + stack)]).ops[_NAME].stack == (_USER, _LIBRARY)


def test_a_gradient_has_the_stack_of_its_forward_operator() -> None:
    text = _RELU + _NEW_NAME + "      # Corresponding code candidate:\n"
    op = parse_ir([_ir(text + "      # Corresponding forward node candidate:\n" + _NEW_STACK)]).ops[_NAME]
    assert (op.of, op.stack) == ("forward op", (_USER, _LIBRARY))


@pytest.mark.parametrize("shape", ["3 3", "-1, 2", "1" * 30, "1, " * 100])
def test_an_impossible_shape_is_not_understood(shape: str) -> None:
    text = _RELU.replace("(2, 4, 6)", f"({shape})") + _NEW_NAME
    signature = parse_ir([_ir(text)]).ops[_NAME].signature
    assert signature is not None
    assert signature.inputs == (None, None)


_TEXT = st.lists(
    st.sampled_from(
        [
            _RELU,
            _NEW_NAME,
            _NEW_STACK,
            "# In file ",
            "# Corresponding code candidate:\n",
            ": (",
            ")",
            "-op1",
            "<Tensor[Float32], (",
            "3 3)>",
            ") -> (",
            "9" * 30,
            ":",
            "~",
            "/",
            "\n",
        ]
    )
    | st.text(max_size=5),
    max_size=30,
).map(lambda parts: "".join(parts).encode())


@given(data=_TEXT | st.binary(max_size=300), cuts=st.lists(st.integers(0, 2000), max_size=5))
def test_any_bytes_are_parsed_wherever_they_are_cut(data: bytes, cuts: list[int]) -> None:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[begin:end] for begin, end in pairwise(ends)]
    assert parse_ir(pieces) == parse_ir([data])


@pytest.mark.parametrize("name", ["mindspore-2.0.0-cpu-sync", "mindspore-2.7.1-cpu-sync", "tinybert-2rank"])
def test_real_files_are_understood_to_the_last_line(dumps: DumpLibrary, name: str) -> None:
    files = sorted(dumps[name].rglob("*.ir"))
    assert files
    for file in files:
        graph = parse_ir([file.read_bytes()])
        assert not graph.problems
        order = file.parents[1] / "execution_order" / f"ms_execution_order_{file.stem.split('code_')[1]}.csv"
        assert set(parse_order(order.read_bytes())) <= set(graph.ops)


_GRAPH = """\
subgraph @kernel_graph0() {
  %0(equiv_16_CNode_29) = Load(%para8_conv1.weight, UMonad[U]) cnode_attrs: {a: Bool(1)}
      # Fullname with scope: (Default/Load-op0)
  %1(equiv_15_output) = Conv2D(%para9_inputs0, %0) {instance name: conv2d}
      # Fullname with scope: (Default/conv/Conv2D-op0)
  %2(CNode_7) = LayerNorm(%1, I64(1), "a, b", (I64(1), I64(2)))
      # Fullname with scope: (Default/LayerNorm-op0)
  %3(CNode_8) = TupleGetItem(%2, I64(2))
      # Fullname with scope: (Default/TupleGetItem-op0)
  %4(CNode_9) = Depend(%3, %1)
      # Fullname with scope: (Default/Depend-op0)
  %5(equiv_x) = PrimFunc_MatMul(%4, %1, Bool(0))
      # Fullname with scope: (Default/MatMul-op0)
}
subgraph @other() {
  %6(CNode_1) = PrimFunc_ReLU(%5)
      # Fullname with scope: (Default/ReLU-op0)
}
"""


def test_edges_go_through_what_only_passes_content_on() -> None:
    ops = parse_ir([_GRAPH.encode()]).ops
    conv = IrSource("Default/conv/Conv2D-op0", 0)
    assert ops["Default/conv/Conv2D-op0"].inputs == (IrSource("inputs0", -1), IrSource("conv1.weight", -1))
    assert ops["Default/LayerNorm-op0"].inputs == (conv, None, None, None)
    assert ops["Default/MatMul-op0"].inputs == (IrSource("Default/LayerNorm-op0", 2), conv, None)


CONSTANT = """\
subgraph @graph() {
  %0(a) = PrimFunc_ReLU(%para1_x) {}
      # Fullname with scope: (Default/ReLU-op0)
  %1(b) = PrimFunc_Add(Tensor(shape=[2, 2], dtype=Float32, value=
[[ 0.00000000e+00  1.00000000e+00]

 [ 4.00000000e+00  5.00000000e+00]]), %0, %para2_y) primitive_attrs: {a: (0, 1)}
      : (<Tensor[Float32], (2, 2), value=...>, <Tensor[Float32], (2, 2)>) -> (<Tensor[Float32], (2, 2)>)
      # Fullname with scope: (Default/Add-op0)
  %2(c) = PrimFunc_Sub(%1, %0)
      # Fullname with scope: (Default/Sub-op0)
}
"""


@pytest.mark.parametrize("size", [3, 10_000])
def test_inputs_behind_a_constant_on_several_lines_are_known(size: int) -> None:
    data = CONSTANT.encode()
    ops = parse_ir(data[begin : begin + size] for begin in range(0, len(data), size)).ops
    relu = IrSource("Default/ReLU-op0", 0)
    assert ops["Default/Add-op0"].inputs == (None, relu, IrSource("y", -1))
    assert ops["Default/Add-op0"].signature is not None
    assert ops["Default/Sub-op0"].inputs == (IrSource("Default/Add-op0", 0), relu)


def test_a_constant_of_any_size_is_not_kept() -> None:
    reader = ArgumentReader()
    reader.take("Tensor(value=")
    for _ in range(10_000):
        reader.take("[1.0 2.0]")
    assert len(reader._begun) < 5000
    reader.take("), %7)")
    assert reader.is_closed
    assert reader.arguments[1] == "%7"


# Graphs that GE writes as text: edges, the operators that were fused, and which graph trains.


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
    opened = ingest_and_open(made.root, store)
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
