"""The pickle of one tensor, interpreted without running anything.

`pickle` calls whatever a file names. Here a stack machine knows the few instructions that `torch.save` uses
for a tensor, and the few names in them; it builds nothing but numbers, texts, tuples and the values of this
module. Anything else ends with an error that says what it met. (`pickletools.genops` is no help: it decodes
the arguments of all instructions, and some of that warns.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from workers.dump.formats.header import MAX_NDIM
from workers.errors import UnreadableTensor

#: The largest number of bytes in an integer: sizes and strides have 8.
_MAX_INT_NBYTES = 16
#: The longest name of a module, a class or a function.
_MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A tensor as its pickle describes it. Sizes and strides in elements."""

    storage: str
    """The class of its storage, such as `torch.FloatStorage`."""
    key: str
    """The member of the archive with its bytes: `data/{key}`."""
    storage_size: int
    """Elements of the storage; bytes if it is an untyped one."""
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str = ""
    """The type of its elements, such as `torch.uint16`, where it is not that of the storage."""


@dataclass(frozen=True, slots=True)
class _Name:
    """A class or function that the pickle mentions."""

    text: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """What a persistent id refers to."""

    kind: str
    key: str
    size: int


class _Mark:
    """Where a tuple or a dictionary begins on the stack."""


_MARK = _Mark()
_Value: TypeAlias = Any


def rebuilt_tensor(pickled: bytes) -> Rebuilt:
    """Return the tensor of a `data.pkl`.

    Args:
        pickled: the whole member. Time and memory are in proportion to its length.

    Raises:
        UnreadableTensor: it is damaged, or describes something else than one tensor.
    """
    value = _Machine(pickled).run()
    if not isinstance(value, Rebuilt):
        raise UnreadableTensor(f"is no single tensor: {_kind(value)}")
    return value


class _Machine:
    """The stack machine of pickle, protocols 2 to 5 (Python, `pickletools.py`)."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        self._at = 0
        self._stack: list[_Value] = []
        self._memo: dict[int, _Value] = {}

    def run(self) -> _Value:
        """Return the value that is left at the end."""
        while True:
            opcode = self._take(1)[0]
            if opcode == ord("."):
                return self._pop()
            instruction = self._INSTRUCTIONS.get(opcode)
            if instruction is None:
                what = _FOREIGN.get(opcode, f"its pickle has instruction {opcode:#x} at byte {self._at - 1}")
                raise UnreadableTensor(f"is no single tensor: {what}")
            instruction(self)

    def _take(self, nbytes: int) -> bytes:
        taken = self._code[self._at : self._at + nbytes]
        if len(taken) < nbytes:
            raise UnreadableTensor(f"its pickle ends in the middle of an instruction, at byte {self._at}")
        self._at += nbytes
        return taken

    def _take_int(self, nbytes: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(nbytes), "little", signed=signed)

    def _take_line(self) -> str:
        end = self._code.find(b"\n", self._at)
        line = self._take(max(end, self._at) - self._at + 1)
        return line[:-1].decode(errors="replace")

    def _pop(self) -> _Value:
        if not self._stack:
            raise UnreadableTensor(f"its pickle takes from an empty stack at byte {self._at}")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[_Value]:
        for n in range(len(self._stack) - 1, -1, -1):
            if self._stack[n] is _MARK:
                values = self._stack[n + 1 :]
                del self._stack[n:]
                return values
        raise UnreadableTensor(f"its pickle lacks a mark at byte {self._at}")

    # The instructions, by pickle's own names.

    def _proto(self) -> None:
        self._take(1)

    def _frame(self) -> None:
        self._take(8)

    def _mark(self) -> None:
        self._stack.append(_MARK)

    def _none(self) -> None:
        self._stack.append(None)

    def _newtrue(self) -> None:
        self._stack.append(True)

    def _newfalse(self) -> None:
        self._stack.append(False)

    def _binint(self) -> None:
        self._stack.append(self._take_int(4, signed=True))

    def _binint1(self) -> None:
        self._stack.append(self._take_int(1))

    def _binint2(self) -> None:
        self._stack.append(self._take_int(2))

    def _long1(self) -> None:
        nbytes = self._take_int(1)
        if nbytes > _MAX_INT_NBYTES:
            raise UnreadableTensor(f"its pickle has an integer of {nbytes} bytes")
        self._stack.append(self._take_int(nbytes, signed=True))

    def _binunicode(self) -> None:
        self._stack.append(self._take(self._take_int(4)).decode(errors="replace"))

    def _short_binunicode(self) -> None:
        self._stack.append(self._take(self._take_int(1)).decode(errors="replace"))

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
            raise UnreadableTensor(f"is no single tensor: its pickle sets items of {_kind(target)}")
        target.update(zip(items[::2], items[1::2], strict=True))
        self._stack.append(target)

    def _binput(self) -> None:
        self._put(self._take_int(1))

    def _long_binput(self) -> None:
        self._put(self._take_int(4))

    def _memoize(self) -> None:
        self._put(len(self._memo))

    def _put(self, n: int) -> None:
        value = self._pop()
        self._memo[n] = value
        self._stack.append(value)

    def _binget(self) -> None:
        self._get(self._take_int(1))

    def _long_binget(self) -> None:
        self._get(self._take_int(4))

    def _get(self, n: int) -> None:
        if n not in self._memo:
            raise UnreadableTensor(f"its pickle lacks the value {n} that it refers to")
        self._stack.append(self._memo[n])

    def _global(self) -> None:
        module = self._take_line()
        self._name(module, self._take_line())

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            raise UnreadableTensor("its pickle names something by no text")
        self._name(module, name)

    def _name(self, module: str, name: str) -> None:
        # Long texts that are used again and again would make much of a small file.
        if len(module) > _MAX_NAME or len(name) > _MAX_NAME:
            raise UnreadableTensor(f"its pickle has a name of {max(len(module), len(name))} characters")
        self._stack.append(_Name(f"{module}.{name}"))

    def _binpersid(self) -> None:
        match self._pop():
            case ("storage", _Name(kind), str(key), str(), int(size)):
                self._stack.append(_Storage(kind, key, size))
            case other:
                raise UnreadableTensor(f"is no single tensor: its pickle refers to {_kind(other)}")

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise UnreadableTensor(f"is no single tensor: its pickle calls {_kind(function)}")
        known = _FUNCTIONS.get(function.text)
        if known is None:
            raise UnreadableTensor(f"is no single tensor: its pickle calls {function.text:.80}")
        self._stack.append(known(*_padded(function.text, arguments)))

    _INSTRUCTIONS: ClassVar[Mapping[int, Callable[[_Machine], None]]] = {
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


def _padded(function: str, arguments: tuple[_Value, ...]) -> tuple[_Value, ...]:
    fewest, most = _ARGUMENTS[function]
    if not fewest <= len(arguments) <= most:
        raise UnreadableTensor(f"its pickle calls {function} with {len(arguments)} arguments")
    return arguments + (None,) * (most - len(arguments))


def _kind(value: _Value) -> str:
    # Never the text of a value: tuples that hold a tuple twice, and so on, have a text without end.
    match value:
        case dict():
            return "a dictionary"
        case tuple():
            return f"a tuple of {len(value)}"
        case _Storage():
            return "a storage"
        case Rebuilt():
            return "a tensor"
        case _Name(text):
            return f"{text:.80}"
        case _:
            return f"a value of type {type(value).__name__.removeprefix('_')}"


def _tensor_v2(*arguments: _Value) -> Rebuilt:
    storage, offset, size, stride, _requires_grad, _hooks, metadata = arguments
    return _tensor(storage, offset, size, stride, metadata=metadata)


def _tensor_v3(*arguments: _Value) -> Rebuilt:
    storage, offset, size, stride, _requires_grad, _hooks, dtype, metadata = arguments
    return _tensor(storage, offset, size, stride, dtype=dtype, metadata=metadata)


def _npu_tensor(*arguments: _Value) -> Rebuilt:
    # The tensor was copied to the host first, and is in host layout; the last argument is the format it had.
    storage, offset, size, stride, _requires_grad, _hooks, _format = arguments
    return _tensor(storage, offset, size, stride)


def _tensor(
    storage: _Value,
    offset: _Value,
    size: _Value,
    stride: _Value,
    *,
    dtype: _Value = None,
    metadata: _Value = None,
) -> Rebuilt:
    if not isinstance(storage, _Storage):
        raise UnreadableTensor(f"is no single tensor: made of {_kind(storage)}")
    if type(offset) is not int or not _are_lengths(size) or not _are_lengths(stride):
        raise UnreadableTensor("its pickle has an impossible shape, strides or offset")
    if not isinstance(dtype, _Name | None):
        raise UnreadableTensor(f"its pickle has {_kind(dtype)} for an element type")
    if not isinstance(metadata, dict | None):
        raise UnreadableTensor(f"its pickle has {_kind(metadata)} for metadata")
    for key, value in (metadata or {}).items():
        # `conj` and `neg` are operations that are still to be done; what else there may be is not known.
        if key not in ("conj", "neg") or value is not False:
            raise UnreadableTensor(f"its elements are not as they are stored: {key:.40}")
    return Rebuilt(
        storage=storage.kind,
        key=storage.key,
        storage_size=storage.size,
        offset=offset,
        size=size,
        stride=stride,
        dtype=dtype.text if dtype else "",
    )


def _parameter(data: _Value, _requires_grad: _Value, _hooks: _Value) -> _Value:
    return data


def _npu_format(number: _Value) -> _Value:
    return number


def _are_lengths(value: _Value) -> bool:
    return isinstance(value, tuple) and len(value) <= MAX_NDIM and all(type(n) is int for n in value)


_FUNCTIONS: dict[str, Callable[..., _Value]] = {
    "collections.OrderedDict": dict,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    # torch_npu, `torch_npu/utils/storage.py`: tensors that were on the accelerator.
    "torch_npu.npu._format.Format": _npu_format,
    "torch_npu.utils.storage._rebuild_npu_tensor": _npu_tensor,
}
#: The fewest and the most arguments of each function.
_ARGUMENTS = {
    "collections.OrderedDict": (0, 0),
    "torch._utils._rebuild_parameter": (3, 3),
    "torch._utils._rebuild_tensor_v2": (6, 7),
    "torch._utils._rebuild_tensor_v3": (7, 8),
    "torch_npu.npu._format.Format": (1, 1),
    "torch_npu.utils.storage._rebuild_npu_tensor": (6, 7),
}
#: Instructions that no tensor needs, and what has them.
_FOREIGN = {
    ord("]"): "a list",
    ord("G"): "a floating-point number",
    ord("b"): "an object with a state",
    0x8F: "a set",
}
