"""Archives of numpy are read as numpy reads them; a compressed array never exceeds what it announces."""

import io
import struct
import zipfile
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrays.arrangements import elements_of, inflate
from workers.dump.formats import npy
from workers.dump.formats.header import HoldsNoTensor, TensorHeader
from workers.dump.formats.npy import read_archive_headers
from workers.errors import UnreadableTensor

ARRAYS: dict[str, Any] = {
    "a": np.arange(6, dtype=np.int32).reshape(2, 3),
    "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "empty": np.zeros((0, 2), np.float32),
}


def file_of(save: Any, **arrays: Any) -> bytes:
    made = io.BytesIO()
    save(made, **arrays)
    return made.getvalue()


def read(file: bytes) -> list[TensorHeader]:
    headers = read_archive_headers(lambda offset, nbytes: file[offset : offset + nbytes], len(file))
    parts = [part for part in headers if part.view is None]
    whole = b"".join(part.lead + file[part.offset : part.offset + part.nbytes] + part.tail for part in parts)
    assert whole == file
    return [part for part in headers if not part.is_part]


def view_of(begin: bytes, header: TensorHeader) -> bytes:
    assert header.view is not None
    read_at = lambda start, nbytes: begin[start : start + nbytes]  # noqa: E731
    return bytes(elements_of(read_at, header.view, header.shape, header.element))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_have_the_elements_that_numpy_reads(save: Any) -> None:
    file = file_of(save, **ARRAYS)
    found = {header.path: header for header in read(file)}
    assert sorted(found) == [("a",), ("empty",), ("f",)]
    for (name,), header in found.items():
        at = header.offset
        content = view_of(file[at:], header) if header.view is not None else file[at : at + header.nbytes]
        values = np.frombuffer(content, header.element.to_numpy())
        shaped = values.reshape(header.shape, order="F" if header.fortran_order else "C")
        assert shaped.tolist() == ARRAYS[name].tolist()


def test_array_that_becomes_more_than_it_announces_is_refused() -> None:
    file = bytearray(file_of(np.savez_compressed, a=np.zeros(1_000_000, np.uint8)))
    at = file.rindex(b"PK\x01\x02")
    file[at + 24 : at + 28] = (1000).to_bytes(4, "little")
    with pytest.raises(UnreadableTensor, match="more than 1000 bytes"):
        read(bytes(file))
    file[at + 24 : at + 28] = (2**31).to_bytes(4, "little")
    with pytest.raises(UnreadableTensor, match="is compressed and has 2147483648 bytes"):
        read(bytes(file))


def test_same_bytes_are_not_decompressed_for_each_of_many_names() -> None:
    """An archive of 56 kB took 22 s."""
    file = file_of(np.savez_compressed, a=np.zeros(24 << 20, np.uint8))
    end = file.rindex(b"PK\x05\x06")
    begin = file.rindex(b"PK\x01\x02")
    entries = b"".join(file[begin:end].replace(b"a.npy", b"%c.npy" % name) for name in range(65, 91))
    record = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 26, 26, len(entries), begin, 0)
    with (
        patch.object(npy, "inflate", wraps=inflate) as counted,
        pytest.raises(UnreadableTensor, match="views that would take"),
    ):
        read(file[:begin] + entries + record)
    assert counted.call_count == 3


def test_other_files_are_told_apart() -> None:
    with pytest.raises(UnreadableTensor, match="is not an npz file"):
        read(b"\x93NUMPY" + bytes(100))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("b.txt", b"c")
    with pytest.raises(HoldsNoTensor):
        read(made.getvalue())


@given(st.integers(0, 700), st.integers(0, 255))
def test_any_changed_byte_is_refused_or_read(at: int, value: int) -> None:
    for save in (np.savez, np.savez_compressed):
        file = bytearray(file_of(save, **ARRAYS))
        file[at % len(file)] = value
        try:
            read(bytes(file))
        except UnreadableTensor:
            continue
