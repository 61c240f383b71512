"""Pickles of `torch.save` that are alike: they differ in values that stand beside the tensors.

A dumper may write a counter and the name of the tensor into each file, next to the tensor itself. A value
that is a member of a dictionary, and of nothing else, becomes an attribute of the file, and has no effect on
what else the pickle describes. So a pickle that differs from another one in such values alone describes the
same tensors, and its attributes are those of the other one with these values in them.

Which members may differ is found by running the pickle once more, with a note of the place of each value.
Which of them do differ is learnt: the others are compared with all the rest of the pickle, which is quicker
than reading them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from workers.dump.formats.pickle_machine import Machine
from workers.errors import UnreadableTensor

T = TypeVar("T")
_Path: TypeAlias = tuple[str, ...]
_Value: TypeAlias = Any
ReadValue: TypeAlias = Callable[[bytes, int], tuple[str, int]]
"""Given the place behind an instruction, returns its value as JSON, and the place behind that."""

#: The longest pickle that is remembered: its texts are shorter than any limit of attributes.
MAX_NBYTES = 4096
#: The longest attributes that are remembered, as JSON. With texts of the longest pickle in them, each byte of
#: which takes up to six characters, they stay below `pt_tree.MAX_ATTRIBUTES_NBYTES`.
_MAX_TEXT_NBYTES = 16 * 1024
#: How many pickles are remembered, how many that begin alike, and how many values of each may differ.
_MAX_KNOWN, _MAX_ALIKE, _MAX_VARYING = 256, 16, 64
#: After 64 pickles in a row that resembled none before, only every sixteenth pickle is remembered.
_FRUITLESS, _SELDOM = 64, 16
_encode = json.JSONEncoder().encode


class VaryingValue(NamedTuple):
    """A value that differs between pickles."""

    begin: int
    """Where it stands: behind its instruction."""
    end: int
    read: ReadValue
    text: str
    """The value as JSON."""


class CutPickle(NamedTuple, Generic[T]):
    """A pickle that is like one before, cut at the values that differ."""

    described: T
    values: tuple[VaryingValue, ...]
    template: str
    """Its attributes as JSON, with `%s` for each of these values."""

    @property
    def attributes(self) -> str:
        """Its attributes as JSON."""
        return self.template % tuple([value.text for value in self.values])


class AlikePickles(Generic[T]):
    """The pickles that were read last, and what they describe."""

    def __init__(self) -> None:
        self._by_beginning: dict[int, dict[bytes, list[_KnownPickle[T]]]] = {}
        """By length of what stands before the first value that differs, and by these bytes."""
        self._count = 0
        self._varying: set[_Path] = set()
        """The ways to the values that differ between pickles."""
        self._last: Mapping[_Path, bytes] = {}
        """How the values in the last pickle that was remembered are written, by the ways to them."""
        self._fruitless = 0
        """How many pickles in a row were like none before."""

    def find(self, code: bytes) -> CutPickle[T] | None:
        """Return a pickle with what it describes; None if it is like none before."""
        for nbytes, by_beginning in self._by_beginning.items():
            for known in by_beginning.get(code[:nbytes], ()):
                values = known.values_of(code, nbytes)
                if values is not None:
                    self._fruitless = 0
                    return CutPickle(known.described, values, known.template)
        return None

    def remember(self, code: bytes, described: T, attributes: Mapping[str, Any]) -> None:
        """Remember a pickle.

        Args:
            code: the pickle, up to `MAX_NBYTES` long.
            described: what it describes, apart from attributes.
            attributes: the attributes of the file: values for JSON.
        """
        self._fruitless += 1
        is_seldom = self._fruitless > _FRUITLESS and self._fruitless % _SELDOM
        if not attributes or is_seldom or "left_out" in attributes:
            return
        places = _places(code)
        varying = self._learn({path: code[begin:end] for path, (begin, end) in places.items()})
        template = _template(attributes, varying)
        if varying and template is not None:
            cuts = [places[path] for path in varying]
            following = (*cuts[1:], (len(code), len(code)))
            parts = [code[end:begin] for (_, end), (begin, _) in zip(cuts, following, strict=True)]
            self._add(code[: cuts[0][0]], _KnownPickle(tuple(parts), template, described))

    def _learn(self, now: Mapping[_Path, bytes]) -> list[_Path]:
        """Return which of these values differ between pickles, given how they are written."""
        self._varying |= {path for path in now.keys() & self._last.keys() if now[path] != self._last[path]}
        self._last = now
        return [path for path in now if path in self._varying][:_MAX_VARYING]

    def _add(self, beginning: bytes, known: _KnownPickle[T]) -> None:
        if self._count >= _MAX_KNOWN:
            self._by_beginning.clear()
            self._count = 0
        alike = self._by_beginning.setdefault(len(beginning), {}).setdefault(beginning, [])
        alike.insert(0, known)
        self._count += 1
        if len(alike) > _MAX_ALIKE:
            alike.pop()
            self._count -= 1


class _KnownPickle(NamedTuple, Generic[T]):
    """A pickle, cut at the values that differ."""

    parts: tuple[bytes, ...]
    """What stands behind each of these values, up to the next one or to the end."""
    template: str
    """See `CutPickle`."""
    described: T

    def values_of(self, code: bytes, at: int) -> tuple[VaryingValue, ...] | None:
        """Return the values of a pickle; None if it is not alike from byte `at` on."""
        values = []
        for part in self.parts:
            read = _READERS.get(code[at]) if at < len(code) else None
            if read is None:
                return None
            begin = at + 1
            text, at = read(code, begin)
            if not code.startswith(part, at):
                return None
            values.append(VaryingValue(begin, at, read, text))
            at += len(part)
        return tuple(values) if at == len(code) else None


def _int1(code: bytes, at: int) -> tuple[str, int]:
    return str(int.from_bytes(code[at : at + 1], "little")), at + 1


def _int2(code: bytes, at: int) -> tuple[str, int]:
    return str(int.from_bytes(code[at : at + 2], "little")), at + 2


def _int4(code: bytes, at: int) -> tuple[str, int]:
    return str(int.from_bytes(code[at : at + 4], "little", signed=True)), at + 4


def _float(code: bytes, at: int) -> tuple[str, int]:
    if at + 8 > len(code):
        return "", len(code)
    value = struct.unpack_from(">d", code, at)[0]
    return _encode(value if math.isfinite(value) else str(value)), at + 8


def _text(code: bytes, at: int) -> tuple[str, int]:
    end = at + 4 + int.from_bytes(code[at : at + 4], "little")
    return _encode(code[at + 4 : end].decode(errors="replace")), end


def _short_text(code: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + int.from_bytes(code[at : at + 1], "little")
    return _encode(code[at + 1 : end].decode(errors="replace")), end


#: By instruction of pickle (BININT1, BININT2, BININT, BINFLOAT, BINUNICODE, SHORT_BINUNICODE), what returns
#: the value as JSON and the byte behind it. A value that is cut off has nothing behind it.
_READERS: Mapping[int, ReadValue] = {
    ord("K"): _int1,
    ord("M"): _int2,
    ord("J"): _int4,
    ord("G"): _float,
    ord("X"): _text,
    0x8C: _short_text,
}


class _Written:
    """A number or a text in a pickle, and where it stands. Each is itself alone, unlike the value."""

    __slots__ = ("begin", "end", "value")

    def __init__(self, value: _Value, begin: int, end: int) -> None:
        self.value, self.begin, self.end = value, begin, end


class _PlacingMachine(Machine):
    """Runs a pickle, and keeps the place of each number and text. Nothing is called."""

    def __init__(self, code: bytes) -> None:
        super().__init__(code, {})
        self._fetched: dict[int, _Value] = {}

    def is_used_once(self, value: _Value) -> bool:
        """Return whether the pickle did not refer to a value again, after it was made."""
        return id(value) not in self._fetched

    def _write(self) -> None:
        begin = self._at - 1
        Machine.INSTRUCTIONS[self._code[begin]](self)
        self._stack.append(_Written(self._pop(), begin, self._at))

    def _get(self, n: int) -> None:
        super()._get(n)
        self._fetched[id(self._stack[-1])] = self._stack[-1]

    def _set(self, items: list[_Value]) -> None:
        items[::2] = map(_value_of, items[::2])
        super()._set(items)

    def _stack_global(self) -> None:
        self._stack[-2:] = map(_value_of, self._stack[-2:])
        super()._stack_global()

    def _binpersid(self) -> None:
        self._stack.append((self._pop(),))

    INSTRUCTIONS: ClassVar[Mapping[int, Callable[[Any], None]]] = {
        **Machine.INSTRUCTIONS,
        **dict.fromkeys(_READERS, _write),
        0x93: _stack_global,
        ord("Q"): _binpersid,
    }


def _value_of(value: _Value) -> _Value:
    return value.value if isinstance(value, _Written) else value


def _places(code: bytes) -> dict[_Path, tuple[int, int]]:
    """Return where values stand that are members of dictionaries and nothing else, by the ways to them."""
    machine = _PlacingMachine(code)
    try:
        root = machine.run()
    except UnreadableTensor:  # it needs what a function makes, or has keys that are not simple
        return {}
    places = {path: (value.begin, value.end) for path, value in _members(machine, root, ())}
    return dict(sorted(places.items(), key=lambda item: item[1]))


def _members(machine: _PlacingMachine, value: _Value, path: _Path) -> Iterator[tuple[_Path, _Written]]:
    if not machine.is_used_once(value):
        return
    if isinstance(value, _Written):
        yield path, value
    # Keys of other types are written as text, so two of them may be the same.
    elif type(value) is dict and all(type(key) is str for key in value):
        for key, member in value.items():
            yield from _members(machine, member, (*path, key))


def _template(attributes: Mapping[str, Any], varying: Sequence[_Path]) -> str | None:
    """Return attributes as JSON with `%s` for the values that differ; None if they are not in this order."""
    texts: list[str] = []
    left = list(reversed(varying))

    def write(value: _Value, path: _Path) -> None:
        if left and path == left[-1]:
            left.pop()
            texts.append("%s")
        elif not isinstance(value, dict):
            texts.append(literal(_encode(value)))
        else:
            texts.append("{")
            for number, (key, member) in enumerate(value.items()):
                texts.append(f"{', ' if number else ''}{literal(_encode(key))}: ")
                write(member, (*path, key))
            texts.append("}")

    write(attributes, ())
    return None if left or sum(map(len, texts)) > _MAX_TEXT_NBYTES else "".join(texts)


def literal(text: str) -> str:
    """Return a text as it stands in a template."""
    return text.replace("%", "%%")
