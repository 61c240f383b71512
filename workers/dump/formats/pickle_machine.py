"""A stack machine for the pickles of torch, which executes nothing that a file names.

`pickle` calls any function that a file names. This machine calls only functions that it was given; a call of
any other function becomes an `Instance`, a value with the name from the file and the arguments of the call.
It builds only numbers, texts, bytes, tuples, lists, dictionaries and the values of
`workers.dump.formats.pickle_values`. `pickletools.genops` does not help: it decodes the arguments of all
instructions, which warns for some of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from workers.dump.formats.pickle_values import (
    Function,
    Global,
    Instance,
    OpaqueKey,
    Storage,
    describe_value,
    is_key,
)
from workers.errors import UnreadableTensor
from workers.host.wording import counted

#: The largest number of bytes in an integer; sizes and strides have 8. In the place of a larger one stands a
#: text, so that no arithmetic with it can take long.
_MAX_INT_NBYTES = 24  # 128 bits and a sign, as in the state of a random generator of numpy
_STOP = ord(".")
#: The most instructions of a pickle: 100,000 parameters take some 5 million. One may make 80 bytes.
_MAX_INSTRUCTIONS = 10_000_000
#: The longest name of a module, a class or a function.
_MAX_NAME = 200


class _Mark:
    """Where a tuple or a dictionary begins on the stack."""


_MARK = _Mark()
_Value: TypeAlias = Any


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
        self._at = at
        self._stack: list[_Value] = []
        self._memo: dict[int, _Value] = {}
        self._bytes_left = len(code)
        """How many bytes functions may still return: text that is encoded is in the pickle."""
        self.storages: list[Storage] = []
        """All that the pickle refers to."""

    def run(self) -> _Value:
        """Return the value that is left at the end."""
        instructions = self.INSTRUCTIONS
        for _ in range(_MAX_INSTRUCTIONS):
            opcode = self._byte()
            instruction = instructions.get(opcode)
            if instruction is None:
                if opcode == _STOP:
                    return self._pop()
                raise UnreadableTensor(f"its pickle has instruction {opcode:#x} at byte {self._at - 1}")
            instruction(self)
        raise UnreadableTensor(f"its pickle has more than {_MAX_INSTRUCTIONS} instructions")

    @property
    def end(self) -> int:
        """The byte after the pickle that was run."""
        return self._at

    def _read(self, nbytes: int) -> bytes:
        content = self._code[self._at : self._at + nbytes]
        if len(content) < nbytes:
            raise UnreadableTensor(f"its pickle ends in the middle of an instruction, at byte {self._at}")
        self._at += nbytes
        return content

    def _byte(self) -> int:
        try:
            byte = self._code[self._at]
        except IndexError:
            return self._read(1)[0]  # which says where it ends
        self._at += 1
        return byte

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
        self._stack.append(self._byte())

    def _binint2(self) -> None:
        self._stack.append(self._read_int(2))

    def _long1(self) -> None:
        self._long(self._read_int(1))

    def _long4(self) -> None:
        self._long(self._read_int(4))

    def _long(self, nbytes: int) -> None:
        if nbytes <= _MAX_INT_NBYTES:
            self._stack.append(self._read_int(nbytes, signed=True))
        else:
            self._read(nbytes)
            self._stack.append(f"an integer of {nbytes} bytes")

    def _binfloat(self) -> None:
        self._stack.append(struct.unpack(">d", self._read(8))[0])

    def _binunicode(self) -> None:
        self._stack.append(self._read(self._read_int(4)).decode(errors="replace"))

    def _short_binunicode(self) -> None:
        self._stack.append(self._read(self._read_int(1)).decode(errors="replace"))

    def _binunicode8(self) -> None:
        self._stack.append(self._read(self._read_int(8)).decode(errors="replace"))

    def _binbytes(self) -> None:
        self._stack.append(self._read(self._read_int(4)))

    def _short_binbytes(self) -> None:
        self._stack.append(self._read(self._read_int(1)))

    def _binbytes8(self) -> None:
        self._stack.append(self._read(self._read_int(8)))

    def _drop(self) -> None:
        self._pop()

    def _drop_mark(self) -> None:
        self._pop_to_mark()

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

    def _empty_list(self) -> None:
        # Sets, too: what is in them need not be hashed to be shown.
        self._stack.append([])

    def _list(self) -> None:
        self._stack.append(self._pop_to_mark())

    def _append(self) -> None:
        self._extend([self._pop()])

    def _appends(self) -> None:
        self._extend(self._pop_to_mark())

    def _extend(self, values: list[_Value]) -> None:
        target = self._stack[-1] if self._stack else None
        if isinstance(target, Instance):
            target.items.extend(values)
        elif isinstance(target, list):
            target.extend(values)
        else:
            raise UnreadableTensor(f"its pickle appends to {describe_value(target)}")

    def _empty_dict(self) -> None:
        self._stack.append({})

    def _dict(self) -> None:
        items = self._pop_to_mark()
        self._stack.append({})
        self._set(items)

    def _setitem(self) -> None:
        value = self._pop()
        self._set([self._pop(), value])

    def _setitems(self) -> None:
        self._set(self._pop_to_mark())

    def _set(self, items: list[_Value]) -> None:
        target = self._stack[-1] if self._stack else None
        mapping = target.mapping if isinstance(target, Instance) else target
        if not isinstance(mapping, dict) or len(items) % 2:
            raise UnreadableTensor(f"its pickle sets items of {describe_value(target)}")
        keys = [key if type(key) is str or is_key(key) else OpaqueKey(key) for key in items[::2]]
        mapping.update(zip(keys, items[1::2], strict=True))

    def _binput(self) -> None:
        self._put(self._byte())

    def _long_binput(self) -> None:
        self._put(self._read_int(4))

    def _memoize(self) -> None:
        self._put(len(self._memo))

    def _put(self, n: int) -> None:
        if not self._stack:
            self._pop()
        self._memo[n] = self._stack[-1]

    def _binget(self) -> None:
        self._get(self._byte())

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
            # The format before torch 1.6 has a sixth value, which was always None.
            case ("storage", Global(kind), str(key), str(), int(size), *rest) if rest in ([], [None]):
                self.storages.append(Storage(kind, key, size))
                self._stack.append(self.storages[-1])
            # The same format names the class of a module together with its source.
            case ("module", Global() as name, str() | None, str() | None):
                self._stack.append(name)
            case other:
                raise UnreadableTensor(f"its pickle refers to {describe_value(other)}")

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise UnreadableTensor(f"its pickle calls {describe_value(function)}")
        known = self._functions.get(function.text)
        if known is None:
            self._stack.append(Instance(function.text, arguments, is_call=True))
            return
        if not known.required <= len(arguments) <= known.maximum:
            raise UnreadableTensor(
                f"its pickle calls {function.text} with {counted(len(arguments), 'argument')}"
            )
        value = known.call(*arguments, *[None] * (known.maximum - len(arguments)))
        if isinstance(value, bytes):
            self._bytes_left -= len(value)
            if self._bytes_left < 0:
                raise UnreadableTensor("its pickle encodes the same text again and again")
        self._stack.append(value)

    def _newobj(self) -> None:
        arguments, cls = self._pop(), self._pop()
        if not isinstance(cls, Global) or not isinstance(arguments, tuple):
            raise UnreadableTensor(f"its pickle makes an instance of {describe_value(cls)}")
        self._stack.append(Instance(cls.text, arguments))

    def _newobj_ex(self) -> None:
        keywords, arguments, cls = self._pop(), self._pop(), self._pop()
        if not isinstance(cls, Global) or not isinstance(arguments, tuple):
            raise UnreadableTensor(f"its pickle makes an instance of {describe_value(cls)}")
        self._stack.append(Instance(cls.text, arguments, state=keywords))

    def _build(self) -> None:
        state = self._pop()
        target = self._stack[-1] if self._stack else None
        # The state of anything else says nothing about its content: `_metadata` of a state dict, hooks.
        if isinstance(target, Instance):
            target.state = state

    INSTRUCTIONS: ClassVar[Mapping[int, Callable[[Machine], None]]] = {
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
        ord("G"): _binfloat,
        0x8B: _long4,
        0x8D: _binunicode8,
        ord("B"): _binbytes,
        ord("C"): _short_binbytes,
        0x8E: _binbytes8,
        0x96: _binbytes8,
        ord("T"): _binbytes,
        ord("U"): _short_binbytes,
        ord("0"): _drop,
        ord("1"): _drop_mark,
        ord("]"): _empty_list,
        0x8F: _empty_list,
        ord("l"): _list,
        0x91: _list,
        ord("a"): _append,
        ord("e"): _appends,
        0x90: _appends,
        ord("d"): _dict,
        0x81: _newobj,
        0x92: _newobj_ex,
        ord("b"): _build,
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
