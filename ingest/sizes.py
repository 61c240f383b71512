"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

from pydantic import ByteSize, TypeAdapter, ValidationError

#: Without a unit no fraction: whoever writes 0.1 means a share, or has forgotten the unit.
_BYTES = re.compile(r"(?:\d+|\d+(?:\.\d+)?\s*[A-Za-z]+)", re.ASCII)


def parse_size(text: str) -> int:
    """Return bytes of `500GiB`, `10 TB` or a plain number.

    Raises:
        ValueError: it is none of these, or more than there can be.
    """
    text = text.strip()
    if _BYTES.fullmatch(text):  # pydantic does not look at what follows a unit
        try:
            return int(TypeAdapter(ByteSize).validate_python(text))
        except (ValidationError, OverflowError):
            pass
    message = f"{text!r} is no number of bytes such as 200GB"
    raise ValueError(message)
