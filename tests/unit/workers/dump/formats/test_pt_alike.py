"""A file that is like one before is read as if it were alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pt_files import (
    archive,
    integer,
    members_of,
    rebuilt,
    sglang_file,
    text,
)
from workers.dump.formats import pt, pt_alike
from workers.dump.formats.header import ReadAt, TensorHeader, assemble
from workers.dump.formats.pt_alike import AlikeFiles, ReadArchive
from workers.errors import UnreadableTensor

FIRST, SECOND = np.arange(12, dtype="f4").reshape(3, 4), np.ones((3, 4), "f4")
TENSOR = rebuilt("torch.FloatStorage", (3, 4), (4, 1))


def reader(content: bytes) -> ReadAt:
    return lambda offset, nbytes: content[offset : offset + nbytes] if offset >= 0 else b""


def alone(content: bytes) -> tuple[TensorHeader, ...] | str:
    """Return what a file consists of, or what is wrong with it, if no other is known."""
    try:
        read = reader(content)
        return assemble(*pt.place_tensors(read, len(content)), read, len(content))
    except UnreadableTensor as exc:
        return exc.message


def remembering(*files: bytes) -> AlikeFiles:
    alike = AlikeFiles()
    for content in files:
        read = reader(content)
        parsed, headers = pt._parse(read, len(content)), alone(content)
        assert parsed.archive is not None
        assert not isinstance(headers, str)
        alike.remember(
            ReadArchive(read, len(content), parsed.archive, parsed.used, parsed.attributes, headers)
        )
    return alike


def found(alike: AlikeFiles, content: bytes) -> tuple[TensorHeader, ...] | None:
    """Return what is known of a file by itself."""
    parts = alike.find(reader(content), len(content))
    return None if parts is None else parts.complete


def named(stem: str, values: np.ndarray[Any, Any] = SECOND, tensor: bytes = TENSOR) -> bytes:
    return archive(members_of(tensor, values.tobytes()), stem=stem)


def sglang(number: int) -> bytes:
    return sglang_file(np.full(4, number, "f4"), number)[1]


PLAIN = [named("layers.0", FIRST), named("layers.0", SECOND)]
SGLANG = [sglang(300), sglang(318)]


def test_headers_of_files_with_values_are_shared() -> None:
    alike = remembering(*SGLANG)
    first, second = (alike.find(reader(content), len(content)) for content in (sglang(320), sglang(322)))
    assert first is not None
    assert second is not None
    assert first.headers[0] is second.headers[0]
    assert first.record != second.record


@pytest.mark.parametrize(
    "others",
    [
        [named("layers.1", tensor=rebuilt("torch.FloatStorage", (4, 3), (3, 1)))] * 2,
        # Another order of members, with the same record at the end. Found by fuzzing.
        [
            archive(
                {
                    name: members_of(TENSOR, SECOND.tobytes())[name]
                    for name in ("data.pkl", "byteorder", "version", "data/0", ".data/serialization_id")
                },
                stem="layers.0",
            )
        ]
        * 2,
    ],
)
def test_files_of_one_size_and_end_are_kept_apart(others: list[bytes]) -> None:
    assert (len(others[0]), others[0][-22:]) == (len(PLAIN[0]), PLAIN[0][-22:])
    alike = remembering(*PLAIN, *others)
    for content in (*PLAIN, *others):
        assert found(alike, content) == alone(content)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pt_alike, "_MAX_KNOWN", 3)
    files = [named("a" * n) for n in range(1, 9) for _ in range(2)]
    alike = remembering(*files)
    assert max(len(alike._known), len(alike._missed)) <= 3
    assert found(alike, files[-1]) == alone(files[-1])


def test_file_is_found_when_all_that_varies_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole dump of SGLang's: names and numbers of any length, and a rank that changes late."""
    monkeypatch.setattr(pt, "_ALIKE", AlikeFiles())
    old = text("world_rank") + b"q\x0c" + integer(0)
    for number in range(300):
        content = sglang(number).replace(old, old[:-1] + bytes([number // 200]))
        assert pt.read_headers(reader(content), len(content)) == alone(content)
    assert sum(count for count, _ in pt._ALIKE._missed.values()) < 60


@pytest.mark.parametrize(
    "files", [[*PLAIN, named("layers.1")], [*SGLANG, sglang(320)]], ids=["plain", "values"]
)
def test_every_byte_counts_or_does_not_matter(files: list[bytes]) -> None:
    *before, content = files
    alike = remembering(*before)
    assert found(alike, content)
    for at in range(len(content)):
        for change in (0x01, 0x90):
            damaged = content[:at] + bytes([content[at] ^ change]) + content[at + 1 :]
            headers = found(alike, damaged)
            assert headers is None or headers == alone(damaged), at


@given(st.lists(st.tuples(st.integers(0, len(SGLANG[0]) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_damage_is_never_overlooked(edits: list[tuple[int, int]]) -> None:
    content = bytearray(SGLANG[0])
    for at, byte in edits:
        content[at] = byte
    headers = found(KNOWN, bytes(content))
    assert headers is None or headers == alone(bytes(content))


KNOWN = remembering(*SGLANG)
