"""What a dump knows of an operator: graphs, stacks, and the tensors that fit them."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.reader.context import Context, context_of
from ingest.reader.context.files import Frame, best_frame, parse_construct, parse_kernel_args, parse_stacks
from ingest.reader.context.ir import (
    AMBIGUOUS,
    BY_TYPE,
    EXACT,
    DumpedOp,
    GraphOp,
    IrGraph,
    OperatorMatch,
    Signature,
    TensorType,
    match_ops,
    parse_ir,
    parse_pb,
)
from ingest.reader.context.rank_context import parse_order
from ingest.reader.tensor import Tensor
from tests.stores import DumpLibrary, MadeDump, ingest_and_open
from workers.dump.formats.tensor_proto import varint

# The context of tensors in a store: everything a dump tells of their operators.


_ONE = np.ones(2, np.float32)


_IR = """\
  %1(output) = MatMul(%0, %para1_w)
      : (<Tensor[Float32], (2)>, <Tensor[Float32], (2)>) -> (<Tensor[Float32], (2)>)
      # Fullname with scope: (net/MatMul-op0)
      # In file /srv/net.py:22, 4~58/        return self.matmul(x, self.w)/
      # In file /env/site-packages/mindspore/nn/layer/basic.py:9, 4~58/        return f(x)/
"""


_ORDER = "NodeExecutionOrder-FullNameWithScope\nA-op0\nnet/MatMul-op0\n"


def _add(made: MadeDump, path: str, text: str) -> None:
    file = made.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def with_ir(made: MadeDump) -> MadeDump:
    """A dump of one operator, with its graph."""
    made.add(_ONE)
    _add(made, "rank_0/graphs/ms_output_trace_code_graph_0.ir", _IR)
    _add(
        made,
        "rank_0/execution_order/ms_execution_order_graph_0.csv",
        _ORDER,
    )
    _add(made, "rank_0/execution_order/ms_global_execution_order_graph_0.csv", "0\r\n0\nx\n2\n")
    return made


def _open(made: MadeDump, store: Path) -> tuple[Context, Tensor]:
    opened = ingest_and_open(made.root, store)
    return context_of(opened, 0), opened.tensors(rank=0, step=0)[0]


def test_an_operator_has_a_source_line(with_ir: MadeDump, store: Path) -> None:
    context, tensor = _open(with_ir, store)
    line = context.source_line(tensor)
    assert line is not None
    assert (line.file, line.line, line.code) == ("/srv/net.py", 22, "return self.matmul(x, self.w)")
    assert (line.matched, line.of, line.op) == ("exact", "op", "net/MatMul-op0")
    assert line.source == "rank_0/graphs/ms_output_trace_code_graph_0.ir"
    assert line.stack[-1] == Frame("/env/site-packages/mindspore/nn/layer/basic.py", 9, "return f(x)")
    assert not context.problems


def test_where_nothing_is_known_nothing_is_said(made: MadeDump, store: Path) -> None:
    made.add(_ONE)
    context, tensor = _open(made, store)
    assert context.source_line(tensor) is None
    assert context.match(tensor) is None
    assert context.position(tensor) is None
    assert context.kernel_args(tensor) is None
    assert context.parent(tensor) is None
    assert not context.problems


def test_another_rank_lends_its_graph(with_ir: MadeDump, store: Path) -> None:
    with_ir.add(_ONE, rank=1)
    opened = ingest_and_open(with_ir.root, store)
    line = context_of(opened, 1).source_line(opened.tensors(rank=1, step=0)[0])
    assert line is not None
    assert line.source == "rank_0/graphs/ms_output_trace_code_graph_0.ir"


@pytest.mark.parametrize(
    ("dump", "place", "known"),
    [
        ("nan-log-2rank", "dump", (1320, 1356)),
        ("tinybert-2rank", "dump", (3084, 3148)),
        ("dtypes-1rank", "dump", (90, 90)),
        ("mindspore-2.0.0-cpu-sync", "lenet", (110, 118)),
        ("mindspore-2.7.1-cpu-sync", "lenet", (154, 154)),
        ("mindspore-2.7.1-cpu-sync", "control-flow", (87, 111)),
    ],
)
def test_real_operators_have_lines(
    dumps: DumpLibrary, store: Path, dump: str, place: str, known: tuple[int, int]
) -> None:
    """The others have no stack in the graph either: sums of gradients, and what the compiler made up."""
    opened = ingest_and_open(dumps[dump] / place, store)
    found: Counter[bool] = Counter()
    for rank in opened.ranks:
        context = context_of(opened, rank)
        for tensor in opened.tensors(rank=rank):
            if tensor.op_type != "Parameter":
                found[context.source_line(tensor) is not None] += 1
                assert context.match(tensor) is not None
        assert not context.problems
    assert (found[True], found.total()) == known


@pytest.fixture
def lenet(dumps: DumpLibrary, tmp_path: Path) -> Path:
    """Return one step of one rank, with its graph."""
    whole = dumps["mindspore-2.7.1-cpu-sync"] / "lenet"
    shutil.copytree(whole, tmp_path / "dump")
    for path in (tmp_path / "dump").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for step in sorted(path for path in (tmp_path / "dump").glob("rank_0/*/0/*") if path.name.isdecimal())[
        1:
    ]:
        shutil.rmtree(step)
    return tmp_path / "dump"


def told(lenet: Path, store: Path) -> list[tuple[str, object, object]]:
    """Return what the graph says of each input: where it comes from, and the line of its operator."""
    opened = ingest_and_open(lenet, store)
    context = context_of(opened, 0)
    lines = [
        (tensor.name, context.graph_source(tensor), context.source_line(tensor))
        for tensor in opened.tensors()
    ]
    return [(name, source, line and (line.file, line.line, line.of, line.op)) for name, source, line in lines]


@pytest.mark.parametrize("text", [None, b"", b"# nothing\n"])
def test_the_protobuf_stands_for_the_text(lenet: Path, tmp_path: Path, text: bytes | None) -> None:
    expected = told(lenet, tmp_path / "with.zarr")
    (graph,) = (lenet / "rank_0/graphs").glob("*.ir")
    if text is None:
        graph.unlink()
    else:
        graph.write_bytes(text)
    found = told(lenet, tmp_path / "without.zarr")
    assert found == expected
    assert any(source for _, source, _ in found)
    assert any(line for _, _, line in found)


# Dumped operators and those of a graph: which is which.


_F16, _F32 = ("float16", 6), ("float32", 6)


def _casts(*types: TensorType, first: int = 0) -> list[GraphOp]:
    return [GraphOp(f"D/Cast-op{first + n}", Signature((), (dtype,))) for n, dtype in enumerate(types)]


def _dumped(*ops: tuple[int, int, TensorType]) -> list[DumpedOp]:
    return [DumpedOp(f"D_Cast-op{number}", time, {("output", 0): kind}) for number, time, kind in ops]


def _numbers(matches: dict[str, OperatorMatch]) -> dict[str, str]:
    """Return the numbers of the matches that are one, by those of the files."""
    return {
        name.rpartition("op")[2]: match.name.rpartition("op")[2]
        for name, match in matches.items()
        if match.name
    }


def test_types_tell_which_order_holds() -> None:
    """The numbers follow the program, and the graph the execution, as the files' times do."""
    dumped = _dumped((0, 300, _F32), (1, 100, _F16), (2, 200, _F32))
    assert _numbers(match_ops(dumped, _casts(_F16, _F32, _F32, first=3))) == {"1": "3", "2": "4", "0": "5"}


def test_nothing_is_guessed_between_two_orders() -> None:
    matches = match_ops(_dumped((0, 200, _F32), (1, 100, _F32)), _casts(_F32, _F32, first=2))
    assert matches["D_Cast-op0"] == OperatorMatch(("D/Cast-op2", "D/Cast-op3"), AMBIGUOUS)
    assert matches["D_Cast-op0"].name is None


@given(
    st.lists(st.builds(DumpedOp, st.text("ab/_-op1", max_size=8), st.integers(-1, 5)), max_size=6),
    st.lists(st.builds(GraphOp, st.text("ab/_-op1", max_size=8)), max_size=6),
)
def test_no_operator_of_a_graph_is_given_twice_by_type(dumped: list[DumpedOp], graph: list[GraphOp]) -> None:
    matches = match_ops(dumped, graph)
    given_out = Counter(match.name for match in matches.values() if match.how == BY_TYPE)
    assert all(count == 1 for count in given_out.values())
    assert {name for match in matches.values() for name in match.names} <= {op.name for op in graph}


@pytest.mark.parametrize(
    ("dump", "rank", "found"),
    [
        ("mindspore-2.0.0-cpu-sync", "lenet/rank_0", {EXACT: 16}),
        ("mindspore-2.7.1-cpu-sync", "lenet/rank_0", {EXACT: 19, BY_TYPE: 1}),
        ("mindspore-2.7.1-cpu-sync", "types/rank_0", {EXACT: 5, BY_TYPE: 11}),
        ("lenet-1rank", "dump/rank_0", {EXACT: 42, BY_TYPE: 3}),
        ("nan-log-2rank", "dump/rank_1", {EXACT: 62, BY_TYPE: 2}),
        ("tinybert-2rank", "dump/rank_1", {EXACT: 169, BY_TYPE: 4}),
        # Of three casts to bfloat16 the order is not known.
        ("dtypes-1rank", "dump/rank_0", {EXACT: 4, BY_TYPE: 13, AMBIGUOUS: 3}),
    ],
)
def test_real_operators_are_found(dumps: DumpLibrary, dump: str, rank: str, found: dict[str, int]) -> None:
    dumped, graph = _read(dumps[dump] / rank)
    matches = match_ops(dumped, graph)
    assert Counter(match.how for match in matches.values()) == found
    assert len(matches) == len(dumped)
    # Where the types are known, they agree; this is how wrong orders were noticed.
    signatures = {op.name: op.signature for op in graph}
    for op in dumped:
        signature = signatures[matches[op.name].names[0]]
        assert matches[op.name].how == EXACT or signature is None or signature.allows(op.types)


def _read(rank: Path) -> tuple[list[DumpedOp], list[GraphOp]]:
    """Return the operators of graph 0: those of the first iteration, and those in its execution order."""
    first: dict[str, int] = {}
    types: dict[str, dict[tuple[str, int], TensorType]] = {}
    iteration = min(rank.glob("*/0/[0-9]*"))
    for file in iteration.glob("*.*.*.npy"):  # no file with a number for its name
        op_type, name, _task, _stream, timestamp, io, slot, *rest = file.name.split(".")
        if op_type == "Parameter":
            continue
        first[name] = min(first.get(name, int(timestamp)), int(timestamp))
        kinds = types.setdefault(name, {})
        if len(rest) == 3:  # format, type, npy
            kinds[io, int(slot)] = (rest[1].lower(), _size(file))
    dumped = [DumpedOp(name, time, types[name]) for name, time in first.items()]
    ops = parse_ir([(rank / "graphs" / "ms_output_trace_code_graph_0.ir").read_bytes()]).ops
    order = parse_order((rank / "execution_order" / "ms_execution_order_graph_0.csv").read_bytes())
    return dumped, [GraphOp(name, ops[name].signature) for name in order]


def _size(file: Path) -> int:
    shape = re.search(rb"'shape': \(([\d, ]*)\)", file.read_bytes()[:300])
    assert shape is not None
    return int(np.prod([int(length) for length in shape[1].split(b",") if length.strip()]))


# Lines of call stacks; stacks, parents and arguments out of JSON files.


_RELU = "Torch.relu.0.forward"


_LINES = [
    "File /env/lib/python3.11/site-packages/torch/nn/modules/module.py, line 7, in inner, \n return f(x)",
    "File /srv/a, b.py, line 10, in forward, \n x = torch.relu(y)",
]


_FRAMES = (
    Frame("/srv/a, b.py", 10, "x = torch.relu(y)", "forward"),
    Frame("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", 7, "return f(x)", "inner"),
)


@pytest.mark.parametrize(
    "content", [{"0": [[_RELU, "Module.a"], _LINES]}, {_RELU: _LINES, "Module.a": _LINES}], ids=["new", "old"]
)
def test_stacks_of_both_forms_go_from_outermost_to_innermost(content: object) -> None:
    assert parse_stacks(json.dumps(content).encode()) == ({_RELU: _FRAMES, "Module.a": _FRAMES}, [])


_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.sampled_from(_LINES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())


@given(_DOCUMENTS | st.binary(max_size=100))
def test_any_bytes_give_an_answer(data: bytes) -> None:
    parse_stacks(data)
    parse_construct(data)
    parse_kernel_args(data)


@pytest.mark.parametrize(
    "data", [b"[" * 200_000, b'{"a":' * 100_000, b'{"a": ' + b"9" * 10_000 + b"}", b"[]"]
)
def test_hostile_json_is_a_problem(data: bytes) -> None:
    for problems in (parse_stacks(data)[1], parse_construct(data)[1]):
        assert len(problems) == 1


@pytest.mark.parametrize(
    ("path", "framework"),
    [
        ("/srv/train.py", False),
        ("/home/me/mindspore/train.py", False),
        ("/env/lib/python3.11/site-packages/mindformers/run.py", False),
        ("/env/lib/python3.11/site-packages/mindspore/nn/cell.py", True),
        (r"C:\env\lib\site-packages\mindspore\nn\cell.py", True),
        ("/home/workspace/mindspore/build/package/mindspore/nn/wrap.py", True),
        ("/ssd1/mindspore/mindspore/nn/layer/conv.py", True),
        ("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", True),
        ("/usr/lib/python3.11/contextlib.py", True),
        ("<string>", True),
    ],
)
def test_code_of_the_framework_is_told_from_that_of_its_user(path: str, framework: bool) -> None:
    assert Frame(path, 1, "").is_framework is framework


def test_the_best_line_is_the_innermost_of_the_user() -> None:
    outer = Frame("/srv/train.py", 1, "")
    assert best_frame([outer, _FRAMES[1], _FRAMES[0], _FRAMES[1]]) == _FRAMES[0]
    assert best_frame([_FRAMES[1]]) == _FRAMES[1]
    assert best_frame([]) is None


# Graphs of MindSpore as protobuf: what they say is what the text beside them says.


def both(directory: Path, number: int = 0) -> tuple[IrGraph, IrGraph]:
    stem = directory / "graphs" / f"ms_output_trace_code_graph_{number}"
    return tuple(  # type: ignore[return-value]
        parse([stem.with_suffix(suffix).read_bytes()])
        for parse, suffix in ((parse_ir, ".ir"), (parse_pb, ".pb"))
    )


@pytest.mark.parametrize(
    "place",
    [
        "mindspore-2.0.0-cpu-sync/lenet/rank_0",
        "mindspore-2.7.1-cpu-sync/types/rank_0",
        "nan-log-2rank/dump/rank_1",
        "lenet-1rank/dump/rank_0",
    ],
)
def test_real_graphs_say_the_same_in_both_forms(dumps: DumpLibrary, place: str) -> None:
    name, _, below = place.partition("/")
    text, proto = both(dumps[name] / below)
    assert proto.problems == []
    # The protobuf has no node for the end of the graph.
    assert [op for op in text.ops if "/Return-" not in op] == list(proto.ops)
    for op_name, op in proto.ops.items():
        same = text.ops[op_name]
        assert op.of == same.of
        # A gradient has several candidates, of which the text has one.
        if op.of == "op":
            assert best_frame(op.stack) == best_frame(same.stack)
        # It has edges that the text leaves out with the value of a constant, and types where that has none.
        for source, in_text in zip(op.inputs, same.inputs, strict=False):
            assert in_text in (None, source)
        if same.signature is not None and op.signature is not None:
            for kind, in_text_kind in zip(op.signature.inputs, same.signature.inputs, strict=False):
                assert None in (kind, in_text_kind) or kind == in_text_kind


@given(st.binary(max_size=80))
def test_any_content_is_accepted(content: bytes) -> None:
    assert parse_pb([content]).problems
    parse_pb([b"\x22" + varint(len(content)) + content])
