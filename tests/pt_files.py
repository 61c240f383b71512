"""Make files as `torch.save` writes them, without torch: a zip archive with a pickle built by opcodes."""

import io
import struct
import zipfile
from collections.abc import Mapping


def text(value: str) -> bytes:
    """Return a string (BINUNICODE)."""
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def integer(value: int) -> bytes:
    """Return an integer in the shortest of BININT1, BININT2, BININT and LONG1, as Python does."""
    if 0 <= value < 1 << 8:
        return b"K" + struct.pack("<B", value)
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    nbytes = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([nbytes]) + value.to_bytes(nbytes, "little", signed=True)


def named(name: str) -> bytes:
    """Return the object of a dotted name (GLOBAL)."""
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def tuple_of(*values: bytes) -> bytes:
    """Return a tuple of values."""
    return b"(" + b"".join(values) + b"t"


def call(function: str, *arguments: bytes) -> bytes:
    """Return a call of a function (REDUCE)."""
    return named(function) + tuple_of(*arguments) + b"R"


def storage(kind: str, size: int, key: str = "0") -> bytes:
    """Return a reference to a storage (BINPERSID)."""
    return tuple_of(text("storage"), named(kind), text(key), text("cpu"), integer(size)) + b"Q"


def integers(values: tuple[int, ...]) -> bytes:
    """Return a tuple of integers."""
    return tuple_of(*map(integer, values))


def archive(
    members: Mapping[str, bytes], *, stem: str = "archive", compression: int = zipfile.ZIP_STORED
) -> bytes:
    """Return a zip archive with the members in the directory `stem`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as writer:
        for name, content in members.items():
            writer.writestr(f"{stem}/{name}", content)
    return file.getvalue()
