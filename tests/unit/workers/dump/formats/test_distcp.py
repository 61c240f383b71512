"""Files of torch.distributed.checkpoint: every part as torch wrote it; no figure in them is believed."""

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dumps import unpack
from tests.pt_files import call, named, pickled, pt_bytes, text
from workers.dump.formats.distcp import Chunk, read_headers, read_metadata
from workers.dump.formats.header import TensorHeader, Truncated
from workers.errors import UnreadableTensor

FLOATS, INTEGERS = np.arange(6, dtype="f4"), np.arange(3, dtype="i8")
FILE = pt_bytes(FLOATS) + pt_bytes(INTEGERS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("checkpoint")
    unpack("pt/pytorch-logs", into)
    return into / "pytorch-logs" / "dcp-checkpoint"


def headers_of(content: bytes, chunks: Mapping[int, Chunk] | None = None) -> tuple[TensorHeader, ...]:
    return read_headers(lambda offset, nbytes: content[offset : offset + nbytes], len(content), chunks)


def put_together(content: bytes, headers: tuple[TensorHeader, ...]) -> bytes:
    return b"".join(
        header.lead + content[header.offset : header.offset + header.nbytes] + header.tail
        for header in headers
        if header.view is None
    )


def test_state_that_many_entries_have_is_not_copied_for_each() -> None:
    """It took minutes, and a place that is too large for a file could collide with any other."""
    many = b"}(" + b"".join(text(f"{n:05}") + b"N" for n in range(10_000)) + b"u"
    index = named("m.Index") + b")\x81}" + text("fqn") + text("w") + b"sb"
    place = (
        named("m.Info") + b")\x81}" + text("relative_path") + text("f") + b"s" + text("offset") + b"K\x07sb"
    )
    unusual = named("m.Info") + b")\x81(h\x00h\x00tb"
    state = (
        b"}" + text("state_dict_metadata") + b"}s" + text("storage_data") + b"}("
        + index + place + (index + unusual) * 2000 + b"us"
    )  # fmt: skip
    begun = time.process_time()
    files = read_metadata(pickled(many + b"q\x000" + named("m.Metadata") + b")\x81" + state + b"b"))
    assert {path: list(chunks) for path, chunks in files.items()} == {"f": [7]}
    assert time.process_time() - begun < 1


def test_every_part_is_where_torch_wrote_it(checkpoint: Path) -> None:
    told = json.loads((checkpoint / "oracle.json").read_text())
    directory = checkpoint / "dump" / "step_2"
    files = read_metadata((directory / ".metadata").read_bytes())
    entries = told["state_dict_metadata"]
    parts = [part for part in told["storage"] if entries[part["fqn"]]["type"] == "TensorStorageMetadata"]
    read: dict[tuple[str, int], tuple[TensorHeader, bytes]] = {}
    for path, chunks in files.items():
        content = (directory / path).read_bytes()
        headers = headers_of(content, chunks)
        assert put_together(content, headers) == content
        begins = sorted(chunks)
        for header in headers:
            begin = max(begin for begin in begins if begin <= header.offset)
            read[path, begin] = header, content[header.offset : header.offset + header.nbytes]
    assert len(parts) == len(read) > 50
    for part in parts:
        header, payload = read[part["file"], part["at"]]
        assert (header.path, list(header.shape)) == ((part["fqn"],), part["shape"])
        assert hashlib.sha256(payload).hexdigest() == part["sha256"]
        record = json.loads(header.record)["tensor"]
        assert (record["global_shape"], record["offsets"]) == (entries[part["fqn"]]["size"], part["offset"])


def test_archives_without_metadata_have_their_places_as_names() -> None:
    headers = headers_of(FILE)
    assert [header.path for header in headers] == [("0",), (str(len(pt_bytes(FLOATS))),)]
    assert put_together(FILE, headers) == FILE
    assert [header.element.name for header in headers] == ["float32", "int64"]


@pytest.mark.parametrize("nbytes", [0, 1, 21, 22, 100])
def test_file_that_is_cut_off_may_still_grow(nbytes: int) -> None:
    with pytest.raises(Truncated):
        headers_of(FILE[:nbytes])


@given(st.integers(0, len(FILE)), st.binary(min_size=1, max_size=8))
def test_damaged_file_is_read_or_refused(at: int, piece: bytes) -> None:
    content = FILE[:at] + piece + FILE[at + len(piece) :]
    with suppress(UnreadableTensor):
        assert put_together(content, headers_of(content)) == content


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x04", pickled(b"}"), pickled(text("x")), pickled(call("os.system", text("true")))],
)
def test_other_content_is_no_metadata(content: bytes) -> None:
    with pytest.raises(UnreadableTensor):
        read_metadata(content)


@given(st.binary(max_size=60))
def test_any_bytes_are_metadata_or_refused(content: bytes) -> None:
    try:
        files: dict[str, Any] = dict(read_metadata(content))
    except UnreadableTensor:
        return
    assert isinstance(files, dict)
