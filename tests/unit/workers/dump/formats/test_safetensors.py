"""Files of safetensors are read as its format says, and no figure in them is believed."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.dump.formats.header import HoldsNoTensor, TensorHeader, Truncated
from workers.dump.formats.safetensors import MAX_HEADER_NBYTES, read_headers
from workers.errors import UnreadableTensor

VALUES = np.arange(6, dtype=np.float32)


def file_of(header: Any, payload: bytes = VALUES.tobytes()) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def tensor(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


#: A JSON object with two members of the same name, which `json.loads` would take for the second one alone.
TWICE = b'{"a": %s, "a": %s}' % tuple(json.dumps(tensor(n, n + 12, [3])).encode() for n in (0, 12))


def read(file: bytes) -> tuple[TensorHeader, ...]:
    headers = read_headers(lambda offset, nbytes: file[offset : offset + nbytes], len(file))
    parts = [part for part in headers if part.view is None]
    whole = b"".join(part.lead + file[part.offset : part.offset + part.nbytes] + part.tail for part in parts)
    assert whole == file
    return headers


def test_tensors_have_names_types_shapes_and_places() -> None:
    header = {"b": tensor(8, 24, [2, 2]), "a": tensor(0, 8, [4], "BF16"), "__metadata__": {"format": "pt"}}
    file = file_of(header)
    found = read(file)
    assert [(header.path, header.element.name, header.shape, header.number) for header in found] == [
        (("a",), "bfloat16", (4,), 1),
        (("b",), "float32", (2, 2), 0),
    ]
    assert json.loads(found[0].record)["file"] == {"__metadata__": {"format": "pt"}}
    assert file[found[1].offset :] == VALUES[2:].tobytes()


def test_tensors_that_overlap_share_their_bytes() -> None:
    whole, part = read(file_of({"part": tensor(8, 16, [2]), "whole": tensor(0, 24, [6])}))
    assert (whole.path, part.path) == (("whole",), ("part",))
    assert part.view is not None
    assert part.view.base == whole.offset


@pytest.mark.parametrize(
    "header", [{"a": tensor(0, 24, [6])}, {"a": tensor(0, 8, [2]), "b": tensor(16, 24, [2])}]
)
def test_files_with_equal_headers_have_bytes_of_their_own(header: dict[str, Any]) -> None:
    """Such a header is read once; what lies between tensors is not part of it."""
    for value in range(3):
        read(file_of(header, bytes([value]) * 24))
    with pytest.raises(Truncated):
        read(file_of(header, bytes(23)))


@pytest.mark.parametrize(
    ("file", "error", "message"),
    [
        (b"1234", Truncated, "fewer than a safetensors header"),
        (struct.pack("<Q", 100) + b"{}", Truncated, "fewer than the 108"),
        (struct.pack("<Q", MAX_HEADER_NBYTES + 1), UnreadableTensor, "at most"),
        (file_of(b"{"), UnreadableTensor, "not JSON"),
        (file_of(b"[" * 100_000), UnreadableTensor, "not JSON"),
        (file_of([1]), UnreadableTensor, "not a JSON object"),
        (file_of({"a": 1}), UnreadableTensor, "lacks the type"),
        (file_of({"a": tensor(0, 24, [7])}), UnreadableTensor, "24 bytes instead of 28"),
        (file_of({"a": tensor(24, 0, [6])}), UnreadableTensor, "-24 bytes instead of 24"),
        (file_of({"a": tensor(-24, 0, [6])}), UnreadableTensor, "begins before the elements"),
        (file_of(TWICE), UnreadableTensor, "has the same name twice"),
        (file_of({"a": tensor(0, 28, [7])}), Truncated, "announces"),
        (file_of({"a": tensor(0, 4, [1])}), UnreadableTensor, "accounts for only"),
        (file_of({"a": tensor(0, 0, [0, 2**61])}), UnreadableTensor, "more bytes than there are addresses"),
        (file_of({"a": tensor(0, 24, [6], "X8")}), UnreadableTensor, "X8, which is not known"),
        (file_of({}, b""), HoldsNoTensor, "names no tensor"),
    ],
)
def test_damage_and_lies_are_named(file: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read(file)


def test_names_without_number_for_the_same_bytes_are_refused() -> None:
    """Each is read when it is converted: the work must not exceed the file by orders of magnitude."""
    payload = bytes(1 << 20)
    header = {f"t{n}": tensor(0, 1 << 20, [1 << 18]) for n in range(2000)}
    with pytest.raises(UnreadableTensor, match="views that would take"):
        read(file_of(header, payload))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(content: bytes) -> None:
    for file in (content, file_of(content)):
        try:
            read(file)
        except UnreadableTensor:
            continue
