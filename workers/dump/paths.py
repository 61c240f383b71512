"""Paths of dump files, and names in files: how they become text, and that no path leaves the dump."""

from __future__ import annotations

import os
import re
from pathlib import Path

from workers.errors import DumpError

_ESCAPED = re.compile(r"%([0-9A-F]{2})")
#: How paths begin that may lead out of a directory, or be the directory itself.
_SUSPECT = frozenset(["", "/", "."])


def to_text(path: str) -> str:
    """Return a path, or a name, as valid Unicode: bytes that are not UTF-8, and `%`, become `%XX`.

    The inverse is `from_text`. Nearly every path stays as it is. Names may have halves of surrogate pairs,
    which no path has: they become the bytes that UTF-8 would have for them.
    """
    if "%" not in path and path.isprintable():
        return path
    escaped = path.replace("%", "%25")
    return "".join(_escape(char) for char in escaped)


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # surrogateescape: a byte that is not UTF-8
        return f"%{ord(char) - 0xDC00:02X}"
    if "\ud800" <= char <= "\udfff":
        return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
    return char


def from_text(text: str) -> str:
    """Return the path, as functions of `os` take it, that `to_text` made this text from."""
    raw = _ESCAPED.sub(lambda match: os.fsdecode(bytes([int(match[1], 16)])), text)
    # Adjacent escaped bytes may form a character again.
    return os.fsdecode(os.fsencode(raw))


def inside(root: Path, path: str) -> Path:
    """Return `root / path`, for a relative path that stays below `root`.

    Raises:
        DumpError: the path is absolute or leaves `root`.
    """
    return root / relative(path)


def relative(path: str) -> str:
    """Return `path` if it is relative and does not lead out of a directory it is joined to; see `inside`."""
    # Most paths are recognised at a glance: this is called for every file.
    if ".." in path or "\0" in path or path[:1] in _SUSPECT:
        parts = path.split("/")
        if path.startswith("/") or "\0" in path or ".." in parts or set(parts) <= {"", "."}:
            raise DumpError(f"the path {path!r} leaves its directory")
    return path
