"""Strict JSON, which has no NaN and no infinities (RFC 8259, section 6): they become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec


def to_plain(value: Any) -> Any:
    """Return a value as `json` can encode it: dictionaries, lists, text, numbers, booleans and None.

    Dataclasses, structs and mappings become dictionaries, other collections lists, enumerations their values,
    scalars and arrays of numpy numbers and lists. NaN and infinities become None, at any depth.

    Raises:
        TypeError: it holds something else.
    """
    return finite_or_none(msgspec.to_builtins(value, enc_hook=_from_other_types))


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON, on one line unless it is indented; see `to_plain`."""
    try:  # most rows are plain and finite, and then this takes half the time
        return json.dumps(value, allow_nan=False, indent=indent)
    except (TypeError, ValueError):
        return json.dumps(to_plain(value), allow_nan=False, indent=indent)


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
