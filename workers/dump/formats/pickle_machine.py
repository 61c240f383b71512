"""A stack machine for the pickles of torch, which executes nothing that a file names.

`pickle` calls any function that a file names. This machine calls only functions that it was given; a call of
any other function becomes an `Instance`, a value with the name from the file and the arguments of the call.
It builds only numbers, texts, bytes, tuples, lists, dictionaries and the values below. `pickletools.genops`
does not help: it decodes the arguments of all instructions, which warns for some of them.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from workers.errors import UnreadableTensor
from workers.model import counted

#: The largest number of bytes in an integer; sizes and strides have 8. In the place of a larger one stands a
#: text, so that no arithmetic with it can take long.
_MAX_INT_NBYTES = 24  # 128 bits and a sign, as in the state of a random generator of numpy
#: Smaller integers are their own hashes. Of the others, any number can have the same hash.
_MAX_INT_KEY = sys.hash_info.modulus
#: The most instructions of a pickle: 100,000 parameters take some 5 million. One may make 80 bytes.
_MAX_INSTRUCTIONS = 10_000_000
#: The longest name of a module, a class or a function.
_MAX_NAME = 200
_Value: TypeAlias = Any


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
    arguments: tuple[_Value, ...]
    is_call: bool = False
    """Whether the pickle calls it as a function, and does not make an instance of it."""
    state: _Value = None
    items: list[_Value] = field(default_factory=list)
    mapping: dict[_Value, _Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueKey:
    """A key of a dictionary that is not a simple value. It equals no other: its value is never compared."""

    value: _Value


class Function(NamedTuple):
    """A function that a pickle may call."""

    call: Callable[..., Any]
    required: int
    maximum: int
    """The greatest number of arguments; those that are left out are None."""


def is_key(value: _Value) -> bool:
    """Return whether a value may be a key of a dictionary as it is.

    Not if a file could have any number of keys with the same hash, or a tuple of tuples that are the same:
    either may take for ever.
    """
    if isinstance(value, int):
        return abs(value) < _MAX_INT_KEY
    return isinstance(value, str | float | bytes | Global | None)


def member_of(value: _Value, *names: str) -> _Value:
    """Return the attribute of an instance that has the first of these names; None if there is none."""
    return attribute_of(value.state, *names) if isinstance(value, Instance) else None


def attribute_of(state: _Value, *names: str) -> _Value:
    """Return the attribute that has the first of these names in the state of an instance; None for none.

    The state is never copied, because any number of instances may have the same one.
    """
    found = (part[name] for name in names for part in state_parts(state) if name in part)
    return next(found, None)


def state_parts(state: _Value) -> list[dict[_Value, _Value]]:
    """Return the attributes in the state of an instance: a dictionary, or two for a class with slots."""
    parts = state[:2] if isinstance(state, tuple) else (state,)
    return [part for part in parts if isinstance(part, dict)]


def describe_value(value: _Value) -> str:
    """Describe a value for error messages.

    Never its text: if a tuple holds another tuple twice, and that one a third tuple twice, and so on, the
    text grows exponentially.
    """
    match value:
        case Storage():
            return "a storage"
        case dict():
            return "a dictionary"
        case tuple() | list():
            return f"a {type(value).__name__} of {len(value)}"
        case Global(text):
            return f"{text:.80}"
        case Instance():
            return f"an instance of {value.name:.80}"
        case _:
            return f"a value of type {type(value).__name__.removeprefix('_')}"


class _Mark:
    """Where a tuple or a dictionary begins on the stack."""


_MARK = _Mark()


class Machine:
    """The stack machine of pickle, protocols 2 to 5 (Python, `pickletools.py`)."""

    def __init__(self, code: bytes, functions: Mapping[str, Function], at: int = 0) -> None:
        """Prepare for a pickle.

        Args:
            code: holds the pickle.
            functions: those that it may call.
            at: where it begins; a file may have several, one behind the other.
        """
        self._code = code
        self._functions = functions
        self.end = at
        """The byte after the last instruction that was run."""
        self._stack: list[_Value] = []
        self._memo: dict[int, _Value] = {}
        self._bytes_left = len(code)
        """How many bytes functions may still return: text that is encoded is in the pickle."""
        self.storages: list[Storage] = []
        """All that the pickle refers to."""

    def run(self) -> _Value:
        """Return the value that is left at the end."""
        values, others, push = self.VALUES, self._OTHERS, self._stack.append
        for _ in range(_MAX_INSTRUCTIONS):
            opcode = self._byte()
            if value := values.get(opcode):
                push(value(self))
            elif other := others.get(opcode):
                other(self)
            elif opcode == ord("."):
                return self._pop()
            else:
                raise UnreadableTensor(f"its pickle has instruction {opcode:#x} at byte {self.end - 1}")
        raise UnreadableTensor(f"its pickle has more than {_MAX_INSTRUCTIONS} instructions")

    def _read(self, nbytes: int) -> bytes:
        content = self._code[self.end : self.end + nbytes]
        if len(content) < nbytes:
            raise UnreadableTensor(f"its pickle ends in the middle of an instruction, at byte {self.end}")
        self.end += nbytes
        return content

    def _byte(self) -> int:
        return self._read(1)[0]

    def _integer(self, nbytes: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._read(nbytes), "little", signed=signed)

    def _long(self, nbytes: int) -> int | str:
        if nbytes <= _MAX_INT_NBYTES:
            return self._integer(nbytes, signed=True)
        self._read(nbytes)
        return f"an integer of {nbytes} bytes"

    def _bytes(self, length_nbytes: int) -> bytes:
        return self._read(self._integer(length_nbytes))

    def _text(self, length_nbytes: int) -> str:
        return self._bytes(length_nbytes).decode(errors="replace")

    def _line(self) -> str:
        end = self._code.find(b"\n", self.end)
        return self._read(max(end, self.end) - self.end + 1)[:-1].decode(errors="replace")

    def _pop(self) -> _Value:
        return self._take(1)[0]

    def _take(self, count: int) -> list[_Value]:
        if len(self._stack) < count:
            raise UnreadableTensor(f"its pickle needs a value from an empty stack at byte {self.end}")
        values = self._stack[-count:]
        del self._stack[-count:]
        return values

    def _take_to_mark(self) -> list[_Value]:
        for n in range(len(self._stack) - 1, -1, -1):
            if self._stack[n] is _MARK:
                values = self._stack[n + 1 :]
                del self._stack[n:]
                return values
        raise UnreadableTensor(f"its pickle lacks a mark at byte {self.end}")

    def _top(self) -> _Value:
        return self._stack[-1] if self._stack else None

    def _extend(self, values: list[_Value]) -> None:
        target = self._top()
        if not isinstance(target, Instance | list):
            raise UnreadableTensor(f"its pickle appends to {describe_value(target)}")
        (target.items if isinstance(target, Instance) else target).extend(values)

    def _set(self, target: _Value, items: list[_Value]) -> _Value:
        mapping = target.mapping if isinstance(target, Instance) else target
        if not isinstance(mapping, dict) or len(items) % 2:
            raise UnreadableTensor(f"its pickle sets items of {describe_value(target)}")
        keys = [key if type(key) is str or is_key(key) else OpaqueKey(key) for key in items[::2]]
        mapping.update(zip(keys, items[1::2], strict=True))
        return target

    def _set_top(self, items: list[_Value]) -> None:
        self._set(self._top(), items)

    def _put(self, number: int) -> None:
        self._memo[number] = self._stack[-1] if self._stack else self._pop()

    def _get(self, number: int) -> _Value:
        if number not in self._memo:
            raise UnreadableTensor(f"its pickle lacks the value {number} that it refers to")
        return self._memo[number]

    def _global(self, module: _Value, name: _Value) -> Global:
        if type(name) is not str or type(module) is not str:
            raise UnreadableTensor("its pickle has a name that is not text")
        # Long texts that are used repeatedly would take far more memory than the file has bytes.
        if len(module) > _MAX_NAME or len(name) > _MAX_NAME:
            raise UnreadableTensor(f"its pickle has a name of {max(len(module), len(name))} characters")
        return Global(f"{module}.{name}")

    def _persistent(self, reference: _Value) -> _Value:
        match reference:
            # The format before torch 1.6 has a sixth value, which was always None.
            case ("storage", Global(kind), str(key), str(), int(size), *rest) if rest in ([], [None]):
                self.storages.append(Storage(kind, key, size))
                return self.storages[-1]
            # The same format names the class of a module together with its source.
            case ("module", Global() as name, str() | None, str() | None):
                return name
            case other:
                raise UnreadableTensor(f"its pickle refers to {describe_value(other)}")

    def _call(self, function: _Value, arguments: _Value) -> _Value:
        instance = self._instance(function, arguments, is_call=True)
        known = self._functions.get(instance.name)
        if known is None:
            return instance
        if not known.required <= len(arguments) <= known.maximum:
            raise UnreadableTensor(
                f"its pickle calls {instance.name} with {counted(len(arguments), 'argument')}"
            )
        value = known.call(*arguments, *[None] * (known.maximum - len(arguments)))
        if isinstance(value, bytes):
            self._bytes_left -= len(value)
            if self._bytes_left < 0:
                raise UnreadableTensor("its pickle encodes the same text again and again")
        return value

    def _instance(
        self, name: _Value, arguments: _Value, state: _Value = None, *, is_call: bool = False
    ) -> Instance:
        if not isinstance(name, Global) or not isinstance(arguments, tuple):
            verb = "calls" if is_call else "makes an instance of"
            raise UnreadableTensor(f"its pickle {verb} {describe_value(name)}")
        return Instance(name.text, arguments, is_call, state)

    def _build(self, state: _Value) -> None:
        target = self._top()
        # The state of anything else says nothing about its content: `_metadata` of a state dict, hooks.
        if isinstance(target, Instance):
            target.state = state

    #: The instructions that put a value on the stack; by their names in pickle, in groups of one kind.
    VALUES: ClassVar[Mapping[int, Callable[[Any], _Value]]] = {
        ord("("): lambda _: _MARK,
        # NONE, NEWTRUE, NEWFALSE
        ord("N"): lambda _: None,
        0x88: lambda _: True,
        0x89: lambda _: False,
        # BININT, BININT1, BININT2, LONG1, LONG4, BINFLOAT
        ord("J"): lambda self: self._integer(4, signed=True),
        ord("K"): lambda self: self._byte(),
        ord("M"): lambda self: self._integer(2),
        0x8A: lambda self: self._long(self._integer(1)),
        0x8B: lambda self: self._long(self._integer(4)),
        ord("G"): lambda self: struct.unpack(">d", self._read(8))[0],
        # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
        ord("X"): lambda self: self._text(4),
        0x8C: lambda self: self._text(1),
        0x8D: lambda self: self._text(8),
        # BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8, BINSTRING, SHORT_BINSTRING
        ord("B"): lambda self: self._bytes(4),
        ord("C"): lambda self: self._bytes(1),
        0x8E: lambda self: self._bytes(8),
        0x96: lambda self: self._bytes(8),
        ord("T"): lambda self: self._bytes(4),
        ord("U"): lambda self: self._bytes(1),
        # EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3, TUPLE
        ord(")"): lambda _: (),
        0x85: lambda self: tuple(self._take(1)),
        0x86: lambda self: tuple(self._take(2)),
        0x87: lambda self: tuple(self._take(3)),
        ord("t"): lambda self: tuple(self._take_to_mark()),
        # EMPTY_LIST, EMPTY_SET, LIST, FROZENSET: what is in a set need not be hashed to be shown
        ord("]"): lambda _: [],
        0x8F: lambda _: [],
        ord("l"): lambda self: self._take_to_mark(),
        0x91: lambda self: self._take_to_mark(),
        # EMPTY_DICT, DICT
        ord("}"): lambda _: {},
        ord("d"): lambda self: self._set({}, self._take_to_mark()),
        # BINGET, LONG_BINGET
        ord("h"): lambda self: self._get(self._byte()),
        ord("j"): lambda self: self._get(self._integer(4)),
        # GLOBAL, STACK_GLOBAL, BINPERSID, REDUCE, NEWOBJ, NEWOBJ_EX
        ord("c"): lambda self: self._global(self._line(), self._line()),
        0x93: lambda self: self._global(*self._take(2)),
        ord("Q"): lambda self: self._persistent(self._pop()),
        ord("R"): lambda self: self._call(*self._take(2)),
        0x81: lambda self: self._instance(*self._take(2)),
        0x92: lambda self: self._instance(*self._take(3)),
    }
    #: Those that do not.
    _OTHERS: ClassVar[Mapping[int, Callable[[Any], object]]] = {
        # PROTO, FRAME, POP, POP_MARK
        0x80: lambda self: self._read(1),
        0x95: lambda self: self._read(8),
        ord("0"): lambda self: self._pop(),
        ord("1"): lambda self: self._take_to_mark(),
        # APPEND, APPENDS, ADDITEMS, SETITEM, SETITEMS
        ord("a"): lambda self: self._extend(self._take(1)),
        ord("e"): lambda self: self._extend(self._take_to_mark()),
        0x90: lambda self: self._extend(self._take_to_mark()),
        ord("s"): lambda self: self._set_top(self._take(2)),
        ord("u"): lambda self: self._set_top(self._take_to_mark()),
        # BINPUT, LONG_BINPUT, MEMOIZE, BUILD
        ord("q"): lambda self: self._put(self._byte()),
        ord("r"): lambda self: self._put(self._integer(4)),
        0x94: lambda self: self._put(len(self._memo)),
        ord("b"): lambda self: self._build(self._pop()),
    }
