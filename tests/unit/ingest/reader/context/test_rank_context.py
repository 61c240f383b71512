"""The context of tensors in a store: everything a dump tells of their operators."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ingest.api import open_store
from ingest.reader.context import Context, context_of
from ingest.reader.context.files import Frame
from ingest.reader.tensor import Tensor
from tests.dumps import DumpLibrary
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly

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
    ingest_directly(made.root, store)
    opened = open_store(store)
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
    ingest_directly(with_ir.root, store)
    opened = open_store(store)
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
    ingest_directly(dumps[dump] / place, store)
    opened = open_store(store)
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
    ingest_directly(lenet, store)
    opened = open_store(store)
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
