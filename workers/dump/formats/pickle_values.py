"""What the stack machine makes of a pickle, besides the plain values of Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Value: TypeAlias = Any
#: Smaller integers are their own hashes. Of the others, any number can have the same hash.
_MAX_INT_KEY = sys.hash_info.modulus


@dataclass(frozen=True, slots=True)
class Global:
    """A class, a function or a constant that the pickle names."""

    text: str


@dataclass(frozen=True, slots=True)
class Storage:
    """The bytes of a tensor, which a persistent id refers to."""

    kind: str
    key: str
    size: int


@dataclass(slots=True, eq=False)
class Instance:
    """What a class or function that is not known would have made. A value: nothing was called."""

    name: str
    arguments: tuple[Value, ...]
    is_call: bool = False
    """Whether the pickle calls it as a function, and does not make an instance of it."""
    state: Value = None
    items: list[Value] = field(default_factory=list)
    mapping: dict[Value, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueKey:
    """A key of a dictionary that is not a simple value. It equals no other: its value is never compared."""

    value: Value


class Function(NamedTuple):
    """A function that a pickle may call."""

    call: Callable[..., Any]
    required: int
    """The least number of arguments."""
    maximum: int
    """The greatest number of arguments; those that are left out are None."""


def is_key(value: Value) -> bool:
    """Return whether a value may be a key of a dictionary as it is.

    Not if a file could have any number of keys with the same hash, or a tuple of tuples that are the same:
    either may take for ever.
    """
    if isinstance(value, int):
        return abs(value) < _MAX_INT_KEY
    return isinstance(value, str | float | bytes | Global | None)


def member_of(value: Value, *names: str) -> Value:
    """Return the attribute of an instance that has the first of these names; None if there is none."""
    return attribute_of(value.state, *names) if isinstance(value, Instance) else None


def attribute_of(state: Value, *names: str) -> Value:
    """Return the attribute that has the first of these names in the state of an instance; None for none.

    The state is never copied, because any number of instances may have the same one.
    """
    found = (part[name] for name in names for part in state_parts(state) if name in part)
    return next(found, None)


def state_parts(state: Value) -> list[dict[Value, Value]]:
    """Return the attributes in the state of an instance: a dictionary, or two for a class with slots."""
    parts = state[:2] if isinstance(state, tuple) else (state,)
    return [part for part in parts if isinstance(part, dict)]


def describe_value(value: Value) -> str:
    """Describe a value for error messages.

    Never its text: if a tuple holds another tuple twice, and that one a third tuple twice, and so on, the
    text grows exponentially.
    """
    match value:
        case dict() | Storage():
            return "a storage" if isinstance(value, Storage) else "a dictionary"
        case tuple() | list():
            return f"a {type(value).__name__} of {len(value)}"
        case Global(text):
            return f"{text:.80}"
        case Instance():
            return f"an instance of {value.name:.80}"
        case _:
            return f"a value of type {type(value).__name__.removeprefix('_')}"
