"""The tensors in a value that `torch.save` wrote, each with the way to it; all other values become JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from workers.dump.formats.pickle_values import Global, Instance, OpaqueKey, Storage, describe_value
from workers.dump.formats.pt_pickle import Composite, RebuiltTensor
from workers.errors import UnreadableTensor

_Value: TypeAlias = Any
_Path: TypeAlias = tuple[str, ...]

#: Only files that were made to fill memory have deeper nesting or more values.
_MAX_DEPTH = 64
_MAX_VALUES = 1_000_000
#: Attributes of a file that take more than this as JSON are left out, the last first, and named.
MAX_ATTRIBUTES_NBYTES = 64 * 1024
_MAX_TEXT = 4096
_MODULE_STATE = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True, slots=True)
class InlineTensor:
    """An array of numpy, whose bytes are in the pickle."""

    descr: str
    """Its type, as numpy describes it: `<i8`."""
    shape: tuple[int, ...]
    content: bytes
    fortran_order: bool = False


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A tensor of a file, and its name in there."""

    path: _Path
    """Keys, indices and attributes that lead to it."""
    tensor: RebuiltTensor | InlineTensor
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """What is known of it alone: of a DTensor, its placements. Plain values."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The tensors of a file, in their order in the file, and everything else."""

    tensors: tuple[FoundTensor, ...]
    attributes: Mapping[str, Any]
    """By the way to them: what is not a tensor. Plain values, ready for JSON."""
    foreign: tuple[str, ...]
    """The functions that the pickle calls, and that nothing is known of."""


def contents(value: _Value) -> Contents:
    """Return the tensors in a value, and everything else.

    Raises:
        UnreadableTensor: it is nested too deeply, or holds too many values.
    """
    walk = _Walk()
    rest = walk.visit(value, ())
    if rest is _TENSOR:
        rest = {}
    attributes = rest if isinstance(rest, dict) else {"": rest}
    return Contents(tuple(walk.tensors), _limited(attributes), tuple(dict.fromkeys(walk.foreign)))


class _Tensor:
    """In the place of a tensor, where only the rest is wanted."""


_TENSOR = _Tensor()
#: In the place of a value that holds itself.
_ITSELF = "what holds this"


class _Walk:
    def __init__(self) -> None:
        self.tensors: list[FoundTensor] = []
        self.foreign: list[str] = []
        self._left = _MAX_VALUES
        self._open: list[_Value] = []
        """The values that hold the one that is visited."""

    def visit(self, value: _Value, path: _Path) -> _Value:
        """Collect the tensors in a value; return the rest as plain values, or `_TENSOR` if there is none."""
        self._left -= 1
        if len(path) > _MAX_DEPTH or self._left < 0:
            raise UnreadableTensor(f"holds values nested more than {_MAX_DEPTH} deep, or too many of them")
        if isinstance(value, RebuiltTensor):
            self.tensors.append(FoundTensor(path, value))
            return _TENSOR
        if not isinstance(value, Composite | Instance | dict | list | tuple):
            return _plain(value)
        if any(value is holder for holder in self._open):
            return _ITSELF
        self._open.append(value)
        rest = self._holder(value, path)
        self._open.pop()
        return rest

    def _holder(self, value: _Value, path: _Path) -> _Value:
        match value:
            case Composite():
                return self._composite(value, path)
            case dict():
                return self._members(value.items(), path)
            case list() | tuple():
                return self._sequence(value, path)
            case _:
                return self._instance(value, path)

    def _members(self, items: Iterable[tuple[_Value, _Value]], path: _Path) -> _Value:
        rest: dict[str, _Value] = {}
        count = 0
        for key, member in items:
            text = _key(key, count)
            count += 1
            plain = self.visit(member, (*path, text))
            if plain is not _TENSOR:
                rest[text] = plain
        return rest if rest or not count else _TENSOR

    def _sequence(self, values: list[_Value] | tuple[_Value, ...], path: _Path) -> _Value:
        before = len(self.tensors)
        plain = [self.visit(member, (*path, str(number))) for number, member in enumerate(values)]
        if len(self.tensors) == before and _TENSOR not in plain:
            return plain
        rest = {str(number): member for number, member in enumerate(plain) if member is not _TENSOR}
        return rest or _TENSOR

    def _composite(self, value: Composite, path: _Path) -> _Value:
        first = len(self.tensors)
        for name, member in value.members.items():
            self.visit(member, (*path, name) if name else path)
        own = _Walk()
        attributes = {"kind": value.kind, **(_as_dict(own.visit(dict(value.attributes), ())))}
        if len(self.tensors) == first:
            return attributes
        for number in range(first, len(self.tensors)):
            found = self.tensors[number]
            self.tensors[number] = FoundTensor(found.path, found.tensor, {**attributes, **found.attributes})
        return _TENSOR

    def _instance(self, value: Instance, path: _Path) -> _Value:
        inline = _as_array(value)
        if inline is not None:
            self.tensors.append(FoundTensor(path, inline))
            return _TENSOR
        scalar = _as_scalar(value)
        if scalar is not None:
            return scalar
        if value.is_call:
            self.foreign.append(value.name)
        before = len(self.tensors)
        rest = {
            "class": value.name,
            **_as_dict(self._members(_parts(value), path)),
        }
        return _TENSOR if len(self.tensors) > before and len(rest) == 1 else rest


def _parts(value: Instance) -> Iterator[tuple[_Value, _Value]]:
    """Yield the members of an instance by name, those that a module hides by the names that users know."""
    yield from enumerate((*value.arguments, *value.items))
    yield from value.mapping.items()
    states = value.state if isinstance(value.state, tuple) else (value.state,)
    for state in states:
        if not isinstance(state, dict):
            if state is not None:
                yield "state", state
            continue
        is_module = "_modules" in state and "_parameters" in state
        for name, member in state.items():
            if is_module and name in _MODULE_STATE and isinstance(member, dict):
                yield from member.items()
            elif not is_module or not str(name).startswith("_"):
                yield name, member


def _as_array(value: Instance) -> InlineTensor | None:
    """Return an array of numpy; None if this is none, or one of objects."""
    if not value.name.endswith("multiarray._reconstruct") or not isinstance(value.state, tuple):
        return None
    match value.state:
        case (int(), tuple(shape), dtype, bool(fortran), bytes(content)) if all(
            type(n) is int for n in shape
        ):
            descr = _descr(dtype)
            return None if descr is None else InlineTensor(descr, shape, content, fortran)
        case _:
            return None


def _as_scalar(value: Instance) -> str | None:
    """Return a scalar of numpy as text; None if this is none."""
    match value.arguments:
        case (dtype, bytes(content)) if value.name.endswith("multiarray.scalar") and _descr(dtype):
            return f"{_descr(dtype)}: {content.hex():.64}"
        case _:
            return None


def _descr(dtype: _Value) -> str | None:
    if not isinstance(dtype, Instance) or dtype.name != "numpy.dtype" or not dtype.arguments:
        return None
    name = dtype.arguments[0]
    order = dtype.state[1] if isinstance(dtype.state, tuple) and len(dtype.state) > 1 else "|"
    if not isinstance(name, str) or not isinstance(order, str) or name.startswith(("O", "V")):
        return None
    return f"{order}{name}"


def _as_dict(rest: _Value) -> dict[str, _Value]:
    return rest if isinstance(rest, dict) else {}


def _key(key: _Value, number: int) -> str:
    """Return the text of a key, given its place in its dictionary."""
    if isinstance(key, OpaqueKey):
        return f"{_kind_of_key(key.value)} {number}"
    if isinstance(key, tuple):
        return f"({', '.join(repr(_plain(member)) for member in key)})"
    return key if isinstance(key, str) else str(_plain(key))


def _kind_of_key(value: _Value) -> str:
    if isinstance(value, Instance):
        return value.name
    return "tensor" if isinstance(value, RebuiltTensor) else describe_value(value)


def _plain(value: _Value) -> _Value:  # noqa: PLR0911  (one return for each kind)
    """Return a value as JSON has it."""
    match value:
        case bool() | None:
            return value
        case int():
            return value if abs(value) < 2**63 else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return value if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]}... ({len(value)} characters)"
        case bytes():
            return f"{len(value)} bytes"
        case Global(text):
            return text
        case Storage():
            return f"{value.kind} {value.key:.40} of {value.size} elements"
        case _:
            return f"a value of type {type(value).__name__}"


def _limited(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes up to the limit of their size."""
    kept: dict[str, Any] = {}
    left_out: list[str] = []
    left = MAX_ATTRIBUTES_NBYTES
    for name, value in attributes.items():
        nbytes = len(name) + len(json.dumps(value))
        if nbytes <= left:
            kept[name] = value
            left -= nbytes
        else:
            left_out.append(name[:_MAX_TEXT])
    if left_out:
        kept["left_out"] = left_out[:100]
    return kept
