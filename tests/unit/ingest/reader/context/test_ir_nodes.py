"""Edges out of the nodes of `.ir` files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.context.ir import parse_ir
from ingest.reader.context.ir_nodes import ArgumentReader, IrSource

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


def test_numbers_begin_again_in_each_subgraph() -> None:
    assert parse_ir([_GRAPH.encode()]).ops["Default/ReLU-op0"].inputs == (None,)


def test_arguments_end_with_their_bracket() -> None:
    reader = ArgumentReader()
    reader.take('%8, (I64(1), I64(2)), "x, (", U[a, b]) {attrs: (1)}')
    assert reader.is_closed
    assert reader.arguments == ["%8", "(I64(1), I64(2))", '"x, ("', "U[a, b]"]


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


def test_a_constant_without_an_end_swallows_no_other_node() -> None:
    text = CONSTANT.replace("]]), %0, %para2_y)", "")
    ops = parse_ir([text.encode()]).ops
    assert ops["Default/Add-op0"].inputs == ()
    assert ops["Default/Sub-op0"].inputs[0] == IrSource("Default/Add-op0", 0)


def test_a_constant_of_any_size_is_not_kept() -> None:
    reader = ArgumentReader()
    reader.take("Tensor(value=")
    for _ in range(10_000):
        reader.take("[1.0 2.0]")
    assert len(reader._begun) < 5000
    reader.take("), %7)")
    assert reader.is_closed
    assert reader.arguments[1] == "%7"


@given(st.text(max_size=60))
def test_any_text_is_accepted(text: str) -> None:
    parse_ir([f"%1(a) = Add({text})\n".encode()])
