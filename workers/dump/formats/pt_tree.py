"""The tensors in a value that `torch.save` wrote, each with the way to it; all other values become JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from workers.dump.formats.pickle_machine import Global, Instance, OpaqueKey, Storage, describe_value
from workers.dump.formats.pt_pickle import Composite, RebuiltTensor, Wrapper
from workers.errors import UnreadableTensor

_Value: TypeAlias = Any
_Path: TypeAlias = tuple[str, ...]

#: Only files that were made to fill memory have deeper nesting or more values. A value that the pickle refers
#: to several times counts as often; so a short pickle may have some more values than bytes.
_MAX_DEPTH = 64
_MAX_VALUES = 1_000_000
_MIN_VALUES, _VALUES_PER_BYTE = 10_000, 4
#: A text counts as one more value for each run of this many characters.
_CHARACTERS_PER_VALUE = 32
#: Attributes of a file that take more than this as JSON are left out, the last first, and named.
MAX_ATTRIBUTES_NBYTES = 64 * 1024
_MAX_TEXT = 4096
#: A tuple of more members, as a key, is not shown.
_MAX_KEY_MEMBERS = 64
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


def contents(value: _Value, pickle_nbytes: int) -> Contents:
    """Return the tensors in a value, and everything else.

    Args:
        value: what a pickle holds.
        pickle_nbytes: the length of that pickle.

    Raises:
        UnreadableTensor: it is nested too deeply, or holds too many values.
    """
    walk = _Walk(min(_MAX_VALUES, _MIN_VALUES + _VALUES_PER_BYTE * pickle_nbytes))
    rest = walk.visit(value, ())
    if rest is _TENSOR:
        rest = {}
    attributes = rest if isinstance(rest, dict) else {"": rest}
    return Contents(tuple(walk.tensors), _limited(attributes), tuple(dict.fromkeys(walk.foreign)))


class _Tensor:
    """In the place of a tensor, or of what is left out, where only the rest is wanted."""


_TENSOR = _Tensor()
#: In the place of a value that holds itself.
_ITSELF = "what holds this"


class _Walk:
    def __init__(self, most: int) -> None:
        self.tensors: list[FoundTensor] = []
        self.foreign: list[str] = []
        self._left = most
        self._open: list[_Value] = []
        """The values that hold the one that is visited."""

    def visit(self, value: _Value, path: _Path) -> _Value:
        """Collect the tensors in a value; return the rest as plain values, or `_TENSOR` if there is none."""
        self._count(1)
        if len(path) > _MAX_DEPTH:
            raise UnreadableTensor(f"holds values nested more than {_MAX_DEPTH} deep")
        if value is _TENSOR:
            return _TENSOR
        if isinstance(value, RebuiltTensor):
            return self._tensor(value, path)
        if not isinstance(value, Composite | Wrapper | Instance | dict | list | tuple):
            plain = _plain(value)
            return self._text(plain) if isinstance(plain, str) else plain
        if any(value is holder for holder in self._open):
            return _ITSELF
        self._open.append(value)
        match value:
            case Composite() | Wrapper():
                rest = self._composite(value.unwrapped() if isinstance(value, Wrapper) else value, path)
            case dict():
                rest = self._members(value.items(), path)
            case list() | tuple():
                rest = self._sequence(value, path)
            case _:
                rest = self._instance(value, path)
        self._open.pop()
        return rest

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise UnreadableTensor("holds too many values, or the same ones too often")

    def _text(self, text: str) -> str:
        self._count(len(text) // _CHARACTERS_PER_VALUE)
        return text

    def _tensor(self, tensor: RebuiltTensor | InlineTensor, path: _Path) -> _Value:
        self._count(sum(map(len, path)) // _CHARACTERS_PER_VALUE)
        self.tensors.append(FoundTensor(path, tensor))
        return _TENSOR

    def _members(self, items: Iterable[tuple[_Value, _Value]], path: _Path) -> _Value:
        rest: dict[str, _Value] = {}
        count = 0
        for count, (key, member) in enumerate(items, start=1):
            text = self._text(_key(key, count - 1))
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
        left = self._left
        kind = {"kind": self._text(value.kind)}
        rest = self.visit(dict(value.attributes), path)
        attributes = kind if rest is _TENSOR else {**kind, **rest}
        if len(self.tensors) == first:
            return attributes
        # Each tensor has all of these attributes.
        self._count((left - self._left) * (len(self.tensors) - first))
        for number in range(first, len(self.tensors)):
            found = self.tensors[number]
            self.tensors[number] = FoundTensor(found.path, found.tensor, {**attributes, **found.attributes})
        return _TENSOR

    def _instance(self, value: Instance, path: _Path) -> _Value:
        if (inline := _as_array(value)) is not None:
            return self._tensor(inline, path)
        match value.arguments:
            case (dtype, bytes(content)) if value.name.endswith("multiarray.scalar") and _descr(dtype):
                return f"{_descr(dtype)}: {content.hex():.64}"
        if value.is_call:
            self.foreign.append(value.name)
        before = len(self.tensors)
        name = {"class": self._text(value.name)}
        members = self._members(_parts(value), path)
        rest = name if members is _TENSOR else {**name, **members}
        return _TENSOR if len(self.tensors) > before and len(rest) == 1 else rest


def _parts(value: Instance) -> Iterator[tuple[_Value, _Value]]:
    """Yield the members of an instance by name, those that a module hides by the names that users know.

    Those that are left out are counted nevertheless: many instances may have the same state.
    """
    yield from enumerate((*value.arguments, *value.items))
    yield from value.mapping.items()
    states = value.state if isinstance(value.state, tuple) else (value.state,)
    for state in states:
        if not isinstance(state, dict):
            yield "state", _TENSOR if state is None else state
            continue
        is_module = "_modules" in state and "_parameters" in state
        for name, member in state.items():
            if is_module and name in _MODULE_STATE and isinstance(member, dict):
                yield from member.items()
            else:
                is_hidden = is_module and isinstance(name, str) and name.startswith("_")
                yield name, _TENSOR if is_hidden else member


def _as_array(value: Instance) -> InlineTensor | None:
    """Return an array of numpy; None if this is none, or one of objects."""
    match value.state:
        case (int(), tuple(shape), dtype, bool(fortran), bytes(content)) if (
            value.name.endswith("multiarray._reconstruct")
            and isinstance(value.state, tuple)
            and all(type(n) is int for n in shape)
        ):
            descr = _descr(dtype)
            return InlineTensor(descr, shape, content, fortran) if descr else None
    return None


def _descr(dtype: _Value) -> str | None:
    if not isinstance(dtype, Instance) or dtype.name != "numpy.dtype" or not dtype.arguments:
        return None
    name = dtype.arguments[0]
    order = dtype.state[1] if isinstance(dtype.state, tuple) and len(dtype.state) > 1 else "|"
    if not isinstance(name, str) or not isinstance(order, str) or name.startswith(("O", "V")):
        return None
    return f"{order}{name}"


def _key(key: _Value, number: int) -> str:
    """Return the text of a key, given its place in its dictionary."""
    if not isinstance(key, OpaqueKey):
        return key if isinstance(key, str) else str(_plain(key))
    match key.value:
        case int():
            return str(key.value)
        case tuple(members) if len(members) <= _MAX_KEY_MEMBERS and all(
            isinstance(member, str | int | float | bytes | Global | None) for member in members
        ):
            return f"({', '.join(repr(_plain(member)) for member in members)})"
        case Instance(name):
            return f"{name} {number}"
        case RebuiltTensor():
            return f"tensor {number}"
        case other:
            return f"{describe_value(other)} {number}"


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
