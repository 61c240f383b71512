"""Edges out of the nodes of `.ir` files."""

from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.context.ir import parse_ir
from ingest.reader.context.ir_nodes import IrSource, split_arguments

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
    assert list(split_arguments('%8, (I64(1), I64(2)), "x, (", U[a, b]) {attrs: (1)}')) == [
        "%8",
        "(I64(1), I64(2))",
        '"x, ("',
        "U[a, b]",
    ]


@given(st.text(max_size=60))
def test_any_text_is_accepted(text: str) -> None:
    list(split_arguments(text))
    parse_ir([f"%1(a) = Add({text})\n".encode()])
