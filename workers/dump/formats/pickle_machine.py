"""A stack machine for the pickle of one tensor, which executes nothing that the file names.

`pickle` calls whatever a file names. This machine knows only the few instructions that `torch.save` uses for
a tensor, and calls only functions that it was given. It builds only numbers, texts, tuples, dictionaries and
the values of this module. Anything else raises an error that names it. `pickletools.genops` does not help: it
decodes the arguments of all instructions, which warns for some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

from workers.errors import UnreadableTensor

#: The largest number of bytes in an integer; sizes and strides have 8.
_MAX_INT_NBYTES = 16
#: The longest name of a module, a class or a function.
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Global:
    """A class or function that the pickle names."""

    text: str


@dataclass(frozen=True, slots=True)
class Storage:
    """The bytes of a tensor, which a persistent id refers to."""

    kind: str
    key: str
    size: int


class Function(NamedTuple):
    """A function that a pickle may call."""

    call: Callable[..., Any]
    required: int
    """The least number of arguments."""
    maximum: int
    """The greatest number of arguments; those that are left out are None."""


class _Mark:
    """Where a tuple or a dictionary begins on the stack."""


_MARK = _Mark()
_Value: TypeAlias = Any


class Machine:
    """The stack machine of pickle, protocols 2 to 5 (Python, `pickletools.py`)."""

    def __init__(self, code: bytes, functions: Mapping[str, Function]) -> None:
        self._code = code
        self._functions = functions
        self._at = 0
        self._stack: list[_Value] = []
        self._memo: dict[int, _Value] = {}

    def run(self) -> _Value:
        """Return the value that is left at the end."""
        while True:
            opcode = self._read(1)[0]
            if opcode == ord("."):
                return self._pop()
            instruction = self._INSTRUCTIONS.get(opcode)
            if instruction is None:
                what = _FOREIGN.get(opcode, f"its pickle has instruction {opcode:#x} at byte {self._at - 1}")
                raise UnreadableTensor(f"is not a single tensor: {what}")
            instruction(self)

    def _read(self, nbytes: int) -> bytes:
        content = self._code[self._at : self._at + nbytes]
        if len(content) < nbytes:
            raise UnreadableTensor(f"its pickle ends in the middle of an instruction, at byte {self._at}")
        self._at += nbytes
        return content

    def _read_int(self, nbytes: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._read(nbytes), "little", signed=signed)

    def _read_line(self) -> str:
        end = self._code.find(b"\n", self._at)
        line = self._read(max(end, self._at) - self._at + 1)
        return line[:-1].decode(errors="replace")

    def _pop(self) -> _Value:
        if not self._stack:
            raise UnreadableTensor(f"its pickle needs a value from an empty stack at byte {self._at}")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[_Value]:
        for n in range(len(self._stack) - 1, -1, -1):
            if self._stack[n] is _MARK:
                values = self._stack[n + 1 :]
                del self._stack[n:]
                return values
        raise UnreadableTensor(f"its pickle lacks a mark at byte {self._at}")

    # The instructions, by the names that pickle gives them.

    def _proto(self) -> None:
        self._read(1)

    def _frame(self) -> None:
        self._read(8)

    def _mark(self) -> None:
        self._stack.append(_MARK)

    def _none(self) -> None:
        self._stack.append(None)

    def _newtrue(self) -> None:
        self._stack.append(True)

    def _newfalse(self) -> None:
        self._stack.append(False)

    def _binint(self) -> None:
        self._stack.append(self._read_int(4, signed=True))

    def _binint1(self) -> None:
        self._stack.append(self._read_int(1))

    def _binint2(self) -> None:
        self._stack.append(self._read_int(2))

    def _long1(self) -> None:
        nbytes = self._read_int(1)
        if nbytes > _MAX_INT_NBYTES:
            raise UnreadableTensor(f"its pickle has an integer of {nbytes} bytes")
        self._stack.append(self._read_int(nbytes, signed=True))

    def _binunicode(self) -> None:
        self._stack.append(self._read(self._read_int(4)).decode(errors="replace"))

    def _short_binunicode(self) -> None:
        self._stack.append(self._read(self._read_int(1)).decode(errors="replace"))

    def _empty_tuple(self) -> None:
        self._stack.append(())

    def _tuple1(self) -> None:
        self._stack.append((self._pop(),))

    def _tuple2(self) -> None:
        last = self._pop()
        self._stack.append((self._pop(), last))

    def _tuple3(self) -> None:
        last, middle = self._pop(), self._pop()
        self._stack.append((self._pop(), middle, last))

    def _tuple(self) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def _empty_dict(self) -> None:
        self._stack.append({})

    def _setitem(self) -> None:
        value = self._pop()
        self._set([self._pop(), value])

    def _setitems(self) -> None:
        self._set(self._pop_to_mark())

    def _set(self, items: list[_Value]) -> None:
        target = self._pop()
        if not isinstance(target, dict) or len(items) % 2 or not all(type(key) is str for key in items[::2]):
            raise UnreadableTensor(
                f"is not a single tensor: its pickle sets items of {describe_value(target)}"
            )
        target.update(zip(items[::2], items[1::2], strict=True))
        self._stack.append(target)

    def _binput(self) -> None:
        self._put(self._read_int(1))

    def _long_binput(self) -> None:
        self._put(self._read_int(4))

    def _memoize(self) -> None:
        self._put(len(self._memo))

    def _put(self, n: int) -> None:
        value = self._pop()
        self._memo[n] = value
        self._stack.append(value)

    def _binget(self) -> None:
        self._get(self._read_int(1))

    def _long_binget(self) -> None:
        self._get(self._read_int(4))

    def _get(self, n: int) -> None:
        if n not in self._memo:
            raise UnreadableTensor(f"its pickle lacks the value {n} that it refers to")
        self._stack.append(self._memo[n])

    def _global(self) -> None:
        module = self._read_line()
        self._name(module, self._read_line())

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            raise UnreadableTensor("its pickle has a name that is not text")
        self._name(module, name)

    def _name(self, module: str, name: str) -> None:
        # Long texts that are used repeatedly would take far more memory than the file has bytes.
        if len(module) > _MAX_NAME or len(name) > _MAX_NAME:
            raise UnreadableTensor(f"its pickle has a name of {max(len(module), len(name))} characters")
        self._stack.append(Global(f"{module}.{name}"))

    def _binpersid(self) -> None:
        match self._pop():
            case ("storage", Global(kind), str(key), str(), int(size)):
                self._stack.append(Storage(kind, key, size))
            case other:
                raise UnreadableTensor(
                    f"is not a single tensor: its pickle refers to {describe_value(other)}"
                )

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise UnreadableTensor(f"is not a single tensor: its pickle calls {describe_value(function)}")
        known = self._functions.get(function.text)
        if known is None:
            raise UnreadableTensor(f"is not a single tensor: its pickle calls {function.text:.80}")
        if not known.required <= len(arguments) <= known.maximum:
            raise UnreadableTensor(f"its pickle calls {function.text} with {len(arguments)} arguments")
        self._stack.append(known.call(*arguments, *[None] * (known.maximum - len(arguments))))

    _INSTRUCTIONS: ClassVar[Mapping[int, Callable[[Machine], None]]] = {
        0x80: _proto,
        0x95: _frame,
        ord("("): _mark,
        ord("N"): _none,
        0x88: _newtrue,
        0x89: _newfalse,
        ord("J"): _binint,
        ord("K"): _binint1,
        ord("M"): _binint2,
        0x8A: _long1,
        ord("X"): _binunicode,
        0x8C: _short_binunicode,
        ord(")"): _empty_tuple,
        0x85: _tuple1,
        0x86: _tuple2,
        0x87: _tuple3,
        ord("t"): _tuple,
        ord("}"): _empty_dict,
        ord("s"): _setitem,
        ord("u"): _setitems,
        ord("q"): _binput,
        ord("r"): _long_binput,
        0x94: _memoize,
        ord("h"): _binget,
        ord("j"): _long_binget,
        ord("c"): _global,
        0x93: _stack_global,
        ord("Q"): _binpersid,
        ord("R"): _reduce,
    }


def describe_value(value: _Value) -> str:
    """Return what a value is, for error messages.

    Never its text: that of a tuple which holds a tuple twice, which holds another one twice, grows
    exponentially.
    """
    match value:
        case dict():
            return "a dictionary"
        case tuple():
            return f"a tuple of {len(value)}"
        case Storage():
            return "a storage"
        case Global(text):
            return f"{text:.80}"
        case _:
            return f"a value of type {type(value).__name__.removeprefix('_')}"


#: Instructions that no tensor needs, and the values that have them.
_FOREIGN = {
    ord("]"): "a list",
    ord("G"): "a floating-point number",
    ord("b"): "an object with a state",
    0x8F: "a set",
}
