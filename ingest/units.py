"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

#: Without a unit no fraction: whoever writes 0.1 means a share, or has forgotten the unit.
_BYTES = re.compile(r"(?:\d+|\d+(?:\.\d+)?\s*[A-Za-z]+)", re.ASCII)


def parse_size(text: str) -> int:
    """Return bytes of `500GiB`, `10 TB` or a plain number.

    Raises:
        ValueError: it is none of these, or more than there can be.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError  # what only writes sizes needs it not

    text = text.strip()
    if _BYTES.fullmatch(text):  # pydantic does not look at what follows a unit
        try:
            return int(TypeAdapter(ByteSize).validate_python(text))
        except (ValidationError, OverflowError):
            pass
    message = f"{text!r} is no number of bytes such as 200GB"
    raise ValueError(message)


def human_bytes(count: float) -> str:
    """Write a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
