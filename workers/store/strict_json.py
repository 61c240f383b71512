"""Strict JSON, which has no NaN and no infinities (RFC 8259, section 6): they become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON, on one line unless it is indented.

    Dataclasses, structs and mappings become dictionaries, other collections lists, enumerations their values,
    scalars and arrays of numpy numbers and lists. NaN and infinities become null, at any depth.

    Raises:
        TypeError: it holds something else.
    """
    try:  # most rows are plain and finite, and then this takes half the time
        return json.dumps(value, allow_nan=False, indent=indent)
    except (TypeError, ValueError):
        plain = msgspec.to_builtins(value, enc_hook=_from_other_types)
        return json.dumps(finite_or_none(plain), allow_nan=False, indent=indent)


def finite_or_none(value: Any) -> Any:
    """Return a plain value with None in the place of NaN and infinities, also in dictionaries and lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite_or_none(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(member) for member in value]
    return value


def _from_other_types(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # what numpy has, without importing it here
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
