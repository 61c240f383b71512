"""Damaged and hostile DumpData files are read as far as they are sound, or refused."""

import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dump_data_reading import BYTES, FLOATS, NULL, headers_of, put_together
from tests.dump_data_writer import (
    Tensor,
    chunk,
    dump_data,
    framed,
    number,
    version_1,
)
from workers.dump.formats.dump_data import MAX_FIELDS, MAX_HEADER_BYTES, read_headers
from workers.dump.formats.header import Truncated
from workers.errors import UnreadableTensor


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'",
        b"PK\x03\x04" + bytes(60),
        b'{"magic": "0x5a5a5a5a"}',
        bytes(64),
        struct.pack("<Q", 16) + b"\xff" * 64,
        framed(b"\x0b" * 20),  # a group, and another in it, and so on
        framed(chunk(4, b"\x0b" * 3000)),
        framed(chunk(4, b"\x12\x05")),
        framed(chunk(3, chunk(3, chunk(1, b"\xff" * 11)))),
        framed(number(2, 1) + b"\x00\x01"),
        b"\x0a\x031.0\x1b" + bytes(20),
        b"\x0a\x031.0" + chunk(4, b"\x13" + bytes(20)),
        b"\x0a\x031.0" + chunk(4, chunk(4, b"payload") + number(5, 6)),
        b"\x0a\x031.0" + chunk(4, b"\x08\x01\x22\x7fpayload"),
    ],
)
def test_other_content_is_unreadable(content: bytes) -> None:
    with pytest.raises(UnreadableTensor) as found:
        headers_of(content)
    assert not isinstance(found.value, Truncated)


def test_header_of_more_than_its_limit_is_refused_unread() -> None:
    def read(offset: int, nbytes: int) -> bytes:
        assert nbytes <= 4096
        return struct.pack("<Q", MAX_HEADER_BYTES + 1)[offset:] + bytes(nbytes - 8)

    with pytest.raises(UnreadableTensor, match="more than 16777216"):
        read_headers(read, 2**40)


def test_header_of_countless_fields_is_refused() -> None:
    """Two bytes of a header become hundreds in memory, if they are a message."""
    content = framed(b"\x22\x00" * (MAX_HEADER_BYTES // 2))
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableTensor, match=f"more than {MAX_FIELDS} fields"):
            headers_of(content)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(content)
    finally:
        tracemalloc.stop()


def test_version_1_of_countless_fields_is_refused() -> None:
    with pytest.raises(UnreadableTensor, match="fields"):
        headers_of(b"\x0a\x031.0" + chunk(4, b"\x08\x01" * 2**18))
    with pytest.raises(UnreadableTensor, match="besides the payloads"):
        headers_of(b"\x0a\x031.0" + chunk(6, bytes(2**23)) * 3)
    with pytest.raises(UnreadableTensor, match="besides the payloads"):
        headers_of(b"\x0a\x031.0" + chunk(4, chunk(20, bytes(2**23)) * 3))


def test_long_name_of_many_tensors_is_refused() -> None:
    """Each tensor carries the name: a small file must not fill the memory with it."""
    message = chunk(1, b"2.0") + chunk(3, b"") * 60_000 + chunk(6, b"x" * 60_000)
    with pytest.raises(UnreadableTensor, match="60000 bytes for each of 60000 tensors"):
        headers_of(framed(message))
    message = chunk(1, b"2.0") + chunk(3, b"") * 60_000 + chunk(6, b"x" * 20)
    assert len(headers_of(framed(message))) == 60_000


def only_its_errors(content: bytes) -> None:
    """Read a file that may be anything: in little time, and raising nothing else."""
    begun = time.perf_counter()
    try:
        headers = headers_of(content)
    except UnreadableTensor:
        pass
    else:
        assert not headers or put_together(content, headers) == content
        assert all(each.full_name.encode() is not None for each in headers)
    assert time.perf_counter() - begun < 1


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    only_its_errors(content)
    only_its_errors(framed(content))
    only_its_errors(framed(content) + bytes(16))
    only_its_errors(b"\x0a\x031.0" + content)


VALID = [
    dump_data([FLOATS, NULL, BYTES], [FLOATS], buffers=[b"buffer"], spaces=[b"space"]),
    dump_data([FLOATS], [Tensor(bytes(2048), 2, (2, 2, 16, 16), (20, 30), format=29)]),
    dump_data([Tensor(bytes(512), 2, (1, 1, 1, 16, 16), (1, 3, 1, 16), format=3)]),
    version_1([FLOATS, BYTES], [FLOATS], buffers=[b"buffer"], spaces=[b"space"]),
]


@given(
    st.sampled_from(VALID),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), st.binary(min_size=1, max_size=4)), max_size=6),
)
def test_damaged_file_is_read_or_refused(content: bytes, edits: list[tuple[float, int, bytes]]) -> None:
    """Bytes replaced, inserted and taken out, most of them in the header."""
    for where, kind, piece in edits:
        at = int(where * min(len(content), 200))
        behind = at if kind == 1 else at + len(piece)
        content = content[:at] + (b"" if kind == 2 else piece) + content[behind:]
    only_its_errors(content)
