"""A file that is like the one before is read as if it were the first."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pt_files import archive, members_of, pt_bytes, rebuilt
from workers.dump.formats import pt, pt_alike
from workers.dump.formats.assembly import assemble
from workers.dump.formats.header import TensorHeader
from workers.dump.formats.pt_alike import AlikeFiles
from workers.errors import UnreadableTensor


def named(stem: str, values: np.ndarray[Any, Any], *, shape: tuple[int, ...] | None = None) -> bytes:
    """Return a file as torch.save writes it under a name, with some bytes that nobody reads."""
    shape = shape or values.shape
    strides = tuple(int(np.prod(shape[n + 1 :])) for n in range(len(shape)))
    tensor = rebuilt("torch.FloatStorage", shape, strides)
    return archive(members_of(tensor, values.tobytes()), stem=stem)


def reader(content: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, nbytes: content[offset : offset + nbytes] if offset >= 0 else b""


def cold(content: bytes) -> tuple[TensorHeader, ...]:
    read = reader(content)
    parsed = pt._parse(read, len(content))
    return assemble(parsed.tensors, parsed.attributes, read, len(content))


def remembering(*files: bytes) -> AlikeFiles:
    alike = AlikeFiles()
    for content in files:
        parsed = pt._parse(reader(content), len(content))
        assert parsed.archive is not None
        for _ in range(2):  # the first one may be like no other
            alike.remember(reader(content), len(content), parsed.archive, parsed.used, cold(content))
    return alike


FIRST, SECOND = np.arange(12, dtype="f4").reshape(3, 4), np.ones((3, 4), "f4")
FILE = named("layers.0", FIRST)


def test_file_with_another_name_and_other_elements_is_alike() -> None:
    content = named("layers.1", SECOND)
    headers = remembering(FILE).headers_of(reader(content), len(content))
    assert headers == cold(content)
    assert headers is not None
    assert headers[0].lead != cold(FILE)[0].lead  # it has the name of the file


@pytest.mark.parametrize(
    "content",
    [
        named("layers.10", SECOND),
        named("layers.1", SECOND, shape=(4, 3)),
        named("layers.1", np.ones(13, "f4")),
        pt_bytes(SECOND),
        FILE[:-1],
        b"",
        FILE[:-1] + b"\1",
        named("layers.1", SECOND).replace(b"layers.1/byteorder", b"layers.2/byteorder"),
        named("layers.1", SECOND).replace(b"little", b"middle"),
        named("layers/1", SECOND),
        b"??" + named("layers.1", SECOND)[2:],
    ],
)
def test_other_files_are_not_alike(content: bytes) -> None:
    assert remembering(FILE).headers_of(reader(content), len(content)) is None


def test_two_pickles_of_one_structure_are_kept_apart() -> None:
    other = named("layers.1", SECOND, shape=(4, 3))
    alike = remembering(FILE, other)
    for content in (FILE, other):
        assert alike.headers_of(reader(content), len(content)) == cold(content)


def test_file_of_the_same_size_and_another_order_of_members_is_kept_apart() -> None:
    """Both end with the same record. Found by fuzzing."""
    tensor = rebuilt("torch.FloatStorage", (3, 4), (4, 1))
    members = members_of(tensor, SECOND.tobytes())
    order = ("data.pkl", "byteorder", "version", "data/0", ".data/serialization_id")
    other = archive({name: members[name] for name in order}, stem="layers.0")
    assert (len(other), other[-22:]) == (len(FILE), FILE[-22:])
    for files in ((FILE, other), (other, FILE), (FILE, other, FILE)):
        alike = remembering(*files)
        for content in (FILE, other):
            assert alike.headers_of(reader(content), len(content)) in (None, cold(content))


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pt_alike, "_MAX_KNOWN", 3)
    files = [named("a" * n, FIRST) for n in range(1, 9)]
    alike = remembering(*files)
    assert len(alike._structures) <= 3
    assert alike.headers_of(reader(files[-1]), len(files[-1])) == cold(files[-1])


@given(st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_damage_is_never_overlooked(edits: list[tuple[int, int]]) -> None:
    """Whatever is changed: a file that counts as alike is read as it would be by itself."""
    content = bytearray(FILE)
    for at, byte in edits:
        content[at] = byte
    headers = remembering(FILE).headers_of(reader(bytes(content)), len(content))
    if headers is not None:
        assert headers == cold(bytes(content))


def test_every_single_byte_counts_or_does_not_matter() -> None:
    alike = remembering(FILE)
    for at in range(len(FILE)):
        content = FILE[:at] + bytes([FILE[at] ^ 0x11]) + FILE[at + 1 :]
        headers = alike.headers_of(reader(content), len(content))
        try:
            expected = cold(content)
        except UnreadableTensor:
            assert headers is None, at
        else:
            assert headers in (None, expected), at
