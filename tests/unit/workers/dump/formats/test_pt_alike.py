"""A file that is like the one before is read as if it were the first."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pt_files import (
    HOOKS,
    archive,
    call,
    forget_pt_files,
    integer,
    integers,
    members_of,
    pt_bytes,
    rebuilt,
    sglang_file,
    storage,
    text,
)
from workers.dump.formats import pt, pt_alike
from workers.dump.formats.assembly import assemble
from workers.dump.formats.header import TensorHeader
from workers.dump.formats.pt_alike import AlikeFiles
from workers.dump.formats.pt_alike_archives import ReadArchive
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
            alike.remember(
                ReadArchive(reader(content), len(content), parsed.archive, parsed.used, cold(content))
            )
    return alike


def found(alike: AlikeFiles, content: bytes) -> tuple[TensorHeader, ...] | None:
    """Return what is known of a file by itself."""
    parts = alike.find(reader(content), len(content))
    return None if parts is None else parts.complete


FIRST, SECOND = np.arange(12, dtype="f4").reshape(3, 4), np.ones((3, 4), "f4")
FILE = named("layers.0", FIRST)


def test_file_with_another_name_and_other_elements_is_alike() -> None:
    content = named("layers.1", SECOND)
    headers = found(remembering(FILE), content)
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
    assert found(remembering(FILE), content) is None


def test_two_pickles_of_one_structure_are_kept_apart() -> None:
    other = named("layers.1", SECOND, shape=(4, 3))
    alike = remembering(FILE, other)
    for content in (FILE, other):
        assert found(alike, content) == cold(content)


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
            assert found(alike, content) in (None, cold(content))


def test_file_without_a_name_is_not_remembered() -> None:
    """Torch writes none: the names of its members begin with a slash."""
    content = named("", FIRST)
    assert found(remembering(content), content) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pt_alike, "_MAX_KNOWN", 3)
    files = [named("a" * n, FIRST) for n in range(1, 9)]
    alike = remembering(*files)
    assert sum(map(len, alike._known.values())) <= 3
    assert found(alike, files[-1]) == cold(files[-1])


@given(st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_damage_is_never_overlooked(edits: list[tuple[int, int]]) -> None:
    """Whatever is changed: a file that counts as alike is read as it would be by itself."""
    content = bytearray(FILE)
    for at, byte in edits:
        content[at] = byte
    headers = found(remembering(FILE), bytes(content))
    if headers is not None:
        assert headers == cold(bytes(content))


def test_every_single_byte_counts_or_does_not_matter() -> None:
    alike = remembering(FILE)
    for at in range(len(FILE)):
        content = FILE[:at] + bytes([FILE[at] ^ 0x11]) + FILE[at + 1 :]
        headers = found(alike, content)
        try:
            expected = cold(content)
        except UnreadableTensor:
            assert headers is None, at
        else:
            assert headers in (None, expected), at


def dumped(number: int, elements: int = 4) -> bytes:
    """Return a file of SGLang's dumper, in which values differ beside the tensor."""
    return sglang_file(np.full(elements, number, "f4"), number)[1]


@pytest.fixture
def learnt(monkeypatch: pytest.MonkeyPatch) -> AlikeFiles:
    """What is known of files with values that differ, after some of them were read."""
    forget_pt_files(monkeypatch)
    for number in range(300, 340):
        content = dumped(number)
        assert pt.read_headers(reader(content), len(content)) == cold(content)
    return pt._ALIKE


def test_files_with_values_that_differ_share_their_header(learnt: AlikeFiles) -> None:
    first, second = (learnt.find(reader(dumped(number)), len(dumped(number))) for number in (350, 360))
    assert first is not None
    assert second is not None
    assert first.headers[0] is second.headers[0]
    assert first.record != second.record
    assert (first.complete, second.complete) == (cold(dumped(350)), cold(dumped(360)))


def test_every_byte_of_a_file_with_values_counts_or_does_not_matter(learnt: AlikeFiles) -> None:
    content = dumped(350)
    assert found(learnt, content)
    for at in range(len(content)):
        for change in (0x01, 0x80):
            damaged = content[:at] + bytes([content[at] ^ change]) + content[at + 1 :]
            headers = found(learnt, damaged)
            if headers is not None:
                assert headers == cold(damaged), at


def test_percent_signs_are_kept(learnt: AlikeFiles) -> None:
    files = [dumped(number).replace(b"disabled", b"%s%%d  %") for number in range(300, 340)]
    for content in files:
        assert pt.read_headers(reader(content), len(content)) == cold(content)
    assert found(learnt, files[-1]) == cold(files[-1])


def pair(number: int) -> bytes:
    """Return a file with two tensors and a number, which a dictionary holds."""
    members = {"data/1": SECOND.tobytes()}
    tensors = [
        text(key)
        + call(
            "torch._utils._rebuild_tensor_v2",
            storage("torch.FloatStorage", 12, key=key),
            integer(0),
            integers((3, 4)),
            integers((4, 1)),
            b"\x89",
            HOOKS,
        )
        for key in ("0", "1")
    ]
    pickle = b"}q\0(" + b"".join(tensors) + text("number") + integer(number) + b"u"
    return archive(members_of(pickle, FIRST.tobytes()) | members)


def test_several_tensors_with_values_have_their_envelopes(learnt: AlikeFiles) -> None:
    for number in range(40):
        assert pt.read_headers(reader(pair(number)), len(pair(number))) == cold(pair(number))
    headers = found(learnt, pair(41))
    assert headers == cold(pair(41))
    assert [header.path for header in headers or ()] == [("0",), ("1",)]


def test_values_that_are_learnt_late_are_values(learnt: AlikeFiles) -> None:
    """The rank is the same in all files that were read first."""

    def of_rank(number: int, rank: int) -> bytes:
        old, new = (text("world_rank") + b"q\x0c" + integer(n) for n in (0, rank))
        content = dumped(number)
        assert content.count(old) == 1
        return content.replace(old, new)

    files = [of_rank(300 + number, number % 5) for number in range(200)]
    for content in files:
        assert pt.read_headers(reader(content), len(content)) == cold(content)
    assert found(learnt, of_rank(350, 7)) == cold(of_rank(350, 7))
