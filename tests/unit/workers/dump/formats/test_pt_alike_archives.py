"""An archive that is like one before is read as if it were alone, whatever the length of its names."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pt_files import archive, forget_pt_files, pt_bytes, sglang_file
from workers.dump.formats import pt, pt_alike_archives, pt_alike_pickles
from workers.dump.formats.assembly import assemble
from workers.dump.formats.header import TensorHeader
from workers.errors import UnreadableTensor

Outcome = tuple[TensorHeader, ...] | str


def file_of(number: int, elements: int = 4) -> bytes:
    return sglang_file(np.full(elements, number, "f4"), number)[1]


def reader(content: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, nbytes: content[offset : offset + nbytes]


def alone(content: bytes) -> Outcome:
    read = reader(content)
    return assemble(*pt.place_tensors(read, len(content)), read, len(content))


def as_read(content: bytes) -> Outcome:
    return pt.read_headers(reader(content), len(content))


def outcome(function: Callable[[bytes], Outcome], content: bytes) -> Outcome:
    try:
        return function(content)
    except UnreadableTensor as exc:
        return str(exc)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Outcome | None]:
    """What is known of a file by itself, after some that are like it were read."""
    forget_pt_files(monkeypatch)
    for number in (5, 22, 23, 300, 301):
        as_read(file_of(number))
    return lambda content: pt._ALIKE_ARCHIVES.headers_of(reader(content), len(content), pt._find_alike)


def test_longer_names_and_values_are_alike(known: Callable[[bytes], Outcome | None]) -> None:
    for number in (6, 99, 1000, 70_000):
        content = file_of(number)
        assert known(content) == alone(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        file_of(302)[:-1],
        file_of(302)[1:],
        file_of(302, elements=5),
        file_of(302).replace(b"/version", b"/Version"),
        file_of(302).replace(b"little", b"middle"),
        file_of(302) + b"\0",
        pt_bytes(np.ones(4, "f4")),
        archive({"a": b"b"}),
    ],
)
def test_other_files_are_not_alike(known: Callable[[bytes], Outcome | None], content: bytes) -> None:
    assert known(content) is None


def test_a_storage_far_from_an_end_is_not_alike(
    known: Callable[[bytes], Outcome | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pt_alike_archives, "MAX_ENVELOPE_NBYTES", 100)
    assert known(file_of(302)) is None


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pt_alike_archives, "_MAX_TENSORS", 1)
    monkeypatch.setattr(pt_alike_archives, "_MAX_KNOWN", 1)
    monkeypatch.setattr(pt_alike_pickles, "_MAX_KNOWN", 1)
    for number in range(40):
        content = file_of(number, elements=1 + number % 2)
        assert as_read(content) == alone(content)


@given(st.integers(0, len(file_of(302)) - 1), st.integers(0, 255))
def test_damage_is_seen_as_in_a_file_alone(at: int, byte: int) -> None:
    for number in (5, 22, 23, 300, 301):
        as_read(file_of(number))
    content = file_of(302)
    damaged = content[:at] + bytes([byte]) + content[at + 1 :]
    assert outcome(as_read, damaged) == outcome(alone, damaged)


def test_damaged_bytes_are_seen_as_in_a_file_alone() -> None:
    for number in (5, 22, 23, 300, 301):
        as_read(file_of(number))
    content = file_of(302)
    for at in range(0, len(content), 3):
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        assert outcome(as_read, damaged) == outcome(alone, damaged)
