"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

#: A fraction needs a unit: a plain 0.1 is a share, or its unit was forgotten.
_SIZE = re.compile(r"(?:\d+|\d+(?:\.\d+)?\s*[A-Za-z]+)", re.ASCII)


def parse_size(text: str) -> int:
    """Return the number of bytes in `500GiB`, `10 TB` or a plain number.

    Raises:
        ValueError: the text is not a number of bytes, or the number is too large to represent.
    """
    # deferred: pydantic takes 0.1 s to import, which commands that only print sizes do not have to spend
    from pydantic import ByteSize, TypeAdapter, ValidationError

    text = text.strip()
    if _SIZE.fullmatch(text):  # pydantic ignores what follows a unit
        try:
            return int(TypeAdapter(ByteSize).validate_python(text))
        except (ValidationError, OverflowError):
            pass
    message = f"{text!r} is not a number of bytes such as 200GB"
    raise ValueError(message)


def human_bytes(count: float) -> str:
    """Return a number of bytes with a binary unit, such as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
