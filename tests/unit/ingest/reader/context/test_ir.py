"""Names, stacks, types and edges out of `.ir` files of every spelling."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.context.files import Frame
from ingest.reader.context.ir import ArgumentReader, IrSource, parse_ir
from ingest.reader.context.rank_context import parse_order
from tests.dumps import DumpLibrary

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
