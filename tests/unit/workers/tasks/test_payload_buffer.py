"""A payload is read whole, whatever its size has to do with that of the parts and of the memory."""

from pathlib import Path

import numpy as np
import pytest

from workers.arrays.digest import digest
from workers.arrays.dtypes import from_name
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.dump.source import OpenFile, around_digest
from workers.errors import SourceChanged
from workers.model import SourceFile
from workers.store.model import RowKind
from workers.tasks.model import Entry
from workers.tasks.payload_buffer import PART_NBYTES, PayloadBuffer

LEAD = b"a header"


def written(root: Path, nbytes: int, lead: bytes = LEAD) -> tuple[Entry, bytes]:
    """Write a file of a header and a payload; return its entry, and the payload."""
    payload = np.random.default_rng(nbytes).bytes(nbytes)
    path = root / "file"
    path.write_bytes(LEAD + payload)
    source = SourceFile("file", path.stat().st_size, path.stat().st_mtime_ns)
    header = TensorHeader(from_name("uint8"), (nbytes,), len(LEAD), nbytes, lead)
    return Entry(source, RowKind.TENSOR, TensorName(op_type="Add", io="output", slot=0), header), payload


@pytest.mark.parametrize("nbytes", [0, 1, PART_NBYTES, PART_NBYTES + 1, 3 * PART_NBYTES - 5])
def test_a_payload_is_held_and_read_in_parts(tmp_path: Path, nbytes: int) -> None:
    entry, payload = written(tmp_path, nbytes)
    buffer = PayloadBuffer(max(nbytes, 1))
    with OpenFile(tmp_path, entry.source, "step 0") as file:
        known, parts = buffer.hold(entry, nbytes, file)
        assert (known, b"".join(parts)) == (digest(payload), payload)
        assert max(map(len, parts)) <= PART_NBYTES
        assert b"".join(bytes(piece) for piece in buffer.pieces(entry, file)) == payload


def test_a_payload_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    entry, payload = written(tmp_path, 1000)
    buffer = PayloadBuffer(300)
    with OpenFile(tmp_path, entry.source, "step 0") as file:
        assert b"".join(bytes(piece) for piece in buffer.pieces(entry, file)) == payload
        assert buffer.ranges(entry, file, [(900, 100), (0, 1), (500, 199)]) == (
            payload[900:] + payload[:1] + payload[500:699]
        )
    assert len(buffer) == 300


@pytest.mark.parametrize("nbytes", [10, 2 * PART_NBYTES])
def test_another_header_is_noticed(tmp_path: Path, nbytes: int) -> None:
    entry, _ = written(tmp_path, nbytes, lead=b"A header")
    with (
        OpenFile(tmp_path, entry.source, "step 0") as file,
        pytest.raises(SourceChanged, match="different header"),
    ):
        PayloadBuffer(nbytes).hold(entry, nbytes, file)


@pytest.mark.parametrize("nbytes", [0, 10, 2 * PART_NBYTES])
def test_what_stands_around_a_payload_is_read_with_it(tmp_path: Path, nbytes: int) -> None:
    _, payload = written(tmp_path, nbytes)
    path = tmp_path / "file"
    path.write_bytes(path.read_bytes() + b"tail")
    source = SourceFile("file", path.stat().st_size, path.stat().st_mtime_ns)
    header = TensorHeader(from_name("uint8"), (nbytes,), len(LEAD), nbytes)
    entry = Entry(source, RowKind.TENSOR, TensorName(), header, around_digest(LEAD + b"tail"))
    buffer = PayloadBuffer(max(nbytes, 1))
    with OpenFile(tmp_path, entry.source, "step 0") as file:
        known, parts = buffer.hold(entry, nbytes, file)
        assert (known, b"".join(parts)) == (digest(payload), payload)
        for _ in range(2):
            assert buffer.around(entry, file) == (LEAD.decode(), "tail")
        assert buffer.around(entry._replace(around=None), file) is None
        with pytest.raises(SourceChanged, match="different header"):
            buffer.around(entry._replace(around=1), file)
