"""The text of a graph counts; its protobuf stands for it where it is missing or unreadable."""

import shutil
from pathlib import Path

import pytest

import ingest
from ingest.reader.context import context_of
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly


@pytest.fixture
def dump(dumps: DumpLibrary, tmp_path: Path) -> Path:
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


def told(dump: Path, store: Path) -> list[tuple[str, object, object]]:
    """Return what the graph says of each input: where it comes from, and the line of its operator."""
    ingest_directly(dump, store)
    opened = ingest.open_store(store)
    context = context_of(opened, 0)
    lines = [
        (tensor.name, context.graph_source(tensor), context.source_line(tensor))
        for tensor in opened.tensors()
    ]
    return [(name, source, line and (line.file, line.line, line.of, line.op)) for name, source, line in lines]


@pytest.mark.parametrize("text", [None, b"", b"# nothing\n"])
def test_the_protobuf_stands_for_the_text(dump: Path, tmp_path: Path, text: bytes | None) -> None:
    expected = told(dump, tmp_path / "with.zarr")
    (graph,) = (dump / "rank_0/graphs").glob("*.ir")
    if text is None:
        graph.unlink()
    else:
        graph.write_bytes(text)
    found = told(dump, tmp_path / "without.zarr")
    assert found == expected
    assert any(source for _, source, _ in found)
    assert any(line for _, _, line in found)
