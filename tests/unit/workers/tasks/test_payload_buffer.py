"""A payload is read whole, whatever its size has to do with that of the parts and of the memory."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workers.arrays.digest import digest
from workers.arrays.dtypes import from_name
from workers.dump.formats.header import TensorHeader
from workers.dump.model import TensorName
from workers.dump.source import OpenFile, envelope_digest
from workers.errors import SourceChanged
from workers.model import SourceFile
from workers.store.model import RowKind
from workers.tasks.convert import PART_NBYTES, PayloadBuffer
from workers.tasks.envelopes import Envelope
from workers.tasks.model import Entry

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


def written_with_tail(root: Path, nbytes: int) -> tuple[Entry, bytes]:
    """Write a file with a tail; return its entry, which has the digest of all but the payload."""
    entry, payload = written(root, nbytes, lead=b"")
    path = root / "file"
    path.write_bytes(path.read_bytes() + b"tail")
    source = SourceFile("file", path.stat().st_size, path.stat().st_mtime_ns)
    return entry._replace(source=source, envelope_digest=envelope_digest(LEAD + b"tail")), payload


@pytest.mark.parametrize("nbytes", [0, 10, 2 * PART_NBYTES])
def test_an_envelope_is_read_with_its_payload(tmp_path: Path, nbytes: int) -> None:
    entry, payload = written_with_tail(tmp_path, nbytes)
    buffer = PayloadBuffer(max(nbytes, 1))
    with OpenFile(tmp_path, entry.source, "step 0") as file:
        known, parts = buffer.hold(entry, nbytes, file)
        assert (known, b"".join(parts)) == (digest(payload), payload)
        for _ in range(2):
            assert buffer.envelope(entry, file) == Envelope(bytearray(LEAD + b"tail"), len(LEAD))
        assert buffer.envelope(entry._replace(envelope_digest=None), file) is None


@pytest.mark.parametrize("nbytes", [0, 10, 2 * PART_NBYTES])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"A" + content[1:], "different header"),
        (lambda content: content[:-1] + b"L", "different header"),
        (lambda content: content[:-1], "ended at byte"),
    ],
)
def test_a_change_in_an_envelope_is_noticed_whatever_its_size_and_time(
    tmp_path: Path, nbytes: int, change: Callable[[bytes], bytes], message: str
) -> None:
    entry, _ = written_with_tail(tmp_path, nbytes)
    path = tmp_path / "file"
    buffer = PayloadBuffer(max(nbytes, 1))

    def read(file: OpenFile) -> None:
        buffer.hold(entry, nbytes, file)
        buffer.envelope(entry, file)

    with OpenFile(tmp_path, entry.source, "step 0") as file:
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(SourceChanged, match=message):
            read(file)
