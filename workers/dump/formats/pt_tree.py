"""The tensors in a value that `torch.save` wrote, each with the way to it; all other values become JSON.

Nothing is executed. Functions and arguments: torch, `torch/_utils.py`, `torch/_tensor.py`,
`torch/serialization.py`, and `torch_npu/utils/storage.py` for tensors that were on the accelerator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeAlias

from workers.dump.formats.header import MAX_NDIM
from workers.dump.formats.pickle_machine import (
    Function,
    Global,
    Instance,
    OpaqueKey,
    Storage,
    attribute_of,
    describe_value,
    member_of,
    state_parts,
)
from workers.errors import UnreadableTensor

#: The longest name of an attribute of a class, together with that of the class.
_MAX_ATTRIBUTE = 600
#: The most parameters of a quantizer, and of the placement of a DTensor.
_MAX_QUANTIZER, _MAX_PLACEMENT = 4, 8


@dataclass(frozen=True, slots=True)
class RebuiltTensor:
    """A tensor as its pickle describes it. Sizes and strides are in elements."""

    storage: str
    """The class of its storage, such as `torch.FloatStorage`."""
    key: str
    """The member of the archive with its bytes: `data/{key}`."""
    storage_size: int
    """Elements of the storage; bytes if it is untyped."""
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str = ""
    """The type of its elements, such as `torch.uint16`, if it differs from the type of the storage."""
    conjugate: bool = False
    """Whether its elements are the conjugates of the stored elements."""
    negative: bool = False
    """Whether its elements are the negatives of those that are stored."""


@dataclass(frozen=True, slots=True)
class Composite:
    """A tensor that consists of others: DTensor, sparse, quantised, nested."""

    kind: str
    members: Mapping[str, _Value]
    """By the end of their names; "" for the one that has the name of the whole."""
    attributes: Mapping[str, _Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Wrapper:
    """A tensor of a subclass that holds others among its attributes.

    The attributes stay as they are until `unwrapped` is called, because many tensors may have the same.
    """

    kind: str
    state: _Value

    def unwrapped(self) -> Composite:
        """Return the tensors inside; one alone has the name of the whole."""
        parts = chain.from_iterable(part.items() for part in state_parts(self.state))
        state = {name: value for name, value in parts if isinstance(name, str)}
        inner = [name for name, value in state.items() if is_tensor(value)]
        members = {"" if len(inner) == 1 else name: state.pop(name) for name in inner}
        return Composite(self.kind, members, state)


def _pending(metadata: _Value) -> Mapping[str, bool]:
    """Return which operations were not carried out on the stored elements, `conj` and `neg`."""
    if not isinstance(metadata, dict | None):
        raise UnreadableTensor(f"its pickle has {describe_value(metadata)} for metadata")
    pending = metadata or {}
    for key, value in pending.items():
        if key not in ("conj", "neg") or type(value) is not bool:
            raise UnreadableTensor(f"its elements are not as they are stored: {key!s:.40}")
    return pending


def _tensor(
    storage: _Value,
    offset: _Value,
    size: _Value,
    stride: _Value,
    *,
    dtype: _Value = None,
    metadata: _Value = None,
) -> RebuiltTensor:
    if not isinstance(storage, Storage):
        raise UnreadableTensor(f"its pickle has a tensor made of {describe_value(storage)}")
    if type(offset) is not int or not _are_lengths(size) or not _are_lengths(stride):
        raise UnreadableTensor("its pickle has an impossible shape, strides or offset")
    if not isinstance(dtype, Global | None):
        raise UnreadableTensor(f"its pickle has {describe_value(dtype)} for an element type")
    pending = _pending(metadata)
    return RebuiltTensor(
        storage=storage.kind,
        key=storage.key,
        storage_size=storage.size,
        offset=offset,
        size=size,
        stride=stride,
        dtype=dtype.text if dtype else "",
        conjugate=pending.get("conj", False),
        negative=pending.get("neg", False),
    )


def _sparse_tensor(layout: _Value, data: _Value) -> Composite:
    if not isinstance(data, tuple) or len(data) < 3:
        raise UnreadableTensor(f"its pickle has a sparse tensor made of {describe_value(data)}")
    if len(data) == 3 or layout == "torch.sparse_coo":
        members = {"indices": data[0], "values": data[1]}
        return Composite("sparse tensor", members, {"layout": layout, "shape": data[2]})
    members = {"compressed_indices": data[0], "plain_indices": data[1], "values": data[2]}
    return Composite("sparse tensor", members, {"layout": layout, "shape": data[3]})


def _quantized_tensor(*arguments: _Value) -> Composite:
    storage, offset, size, stride, parameters, _requires_grad, _hooks = arguments
    integers = _tensor(storage, offset, size, stride)
    if not isinstance(parameters, tuple) or not 0 < len(parameters) <= _MAX_QUANTIZER:
        raise UnreadableTensor(f"its pickle has {describe_value(parameters)} for a quantizer")
    scheme, *rest = parameters
    names = ("scales", "zero_points", "axis") if len(rest) == 3 else ("scale", "zero_point")
    members: dict[str, _Value] = {"": integers}
    attributes: dict[str, _Value] = {"scheme": scheme}
    for name, value in zip(names, rest, strict=False):
        (members if isinstance(value, RebuiltTensor) else attributes)[name] = value
    return Composite("quantised tensor", members, attributes)


def _from_type(function: _Value, cls: _Value, arguments: _Value, state: _Value = None) -> _Value:
    """Return what a subclass of a tensor is, in the order in which torch saves it."""
    if not isinstance(function, Global) or not isinstance(cls, Global) or not isinstance(arguments, tuple):
        raise UnreadableTensor(f"its pickle calls {describe_value(function)}")
    local = attribute_of(state, "_local_tensor")
    if local is not None:
        return Composite("DTensor", {"": local}, _layout_of(attribute_of(state, "_spec"), arguments))
    if function.text.endswith("._rebuild_wrapper_subclass"):
        return Wrapper(cls.text, state)
    if function.text.endswith("._rebuild_njt") and arguments and isinstance(arguments[0], dict):
        # A jagged nested tensor: the rows of all its tensors, and where each begins and ends.
        parts = arguments[0]
        members = {
            name: parts[name] for name in ("values", "offsets", "lengths") if is_tensor(parts.get(name))
        }
        return Composite("nested tensor", members, {"ragged_axis": parts.get("_ragged_idx")})
    known = FUNCTIONS.get(function.text)
    if known is None or known.call is _from_type or not known.required <= len(arguments) <= known.maximum:
        return Instance(function.text, arguments, is_call=True, state=state)
    return known.call(*arguments, *[None] * (known.maximum - len(arguments)))


def is_tensor(value: _Value) -> bool:
    """Return whether a value is a tensor, or consists of some."""
    return isinstance(value, RebuiltTensor | Composite | Wrapper)


def _layout_of(spec: _Value, arguments: tuple[_Value, ...]) -> dict[str, _Value]:
    """Return placements, global shape and mesh of a DTensor (`torch/distributed/tensor/_dtensor_spec.py`)."""
    layout: dict[str, _Value] = {"global_shape": arguments[2] if len(arguments) > 2 else None}
    placements, mesh = member_of(spec, "placements"), member_of(spec, "mesh")
    if isinstance(placements, tuple | list) and len(placements) <= MAX_NDIM:
        layout["placements"] = [_placement(placement) for placement in placements]
    for name, attribute in (
        ("mesh_dim_names", "_mesh_dim_names"),
        ("mesh_ranks", "_flatten_rank_map"),
        ("mesh_coordinate", "_coordinate_on_dim"),
    ):
        value = member_of(mesh, attribute, attribute.removeprefix("_"))
        if value is not None:
            layout[name] = value
    return layout


def _placement(value: _Value) -> str:
    """Return `Shard(0)`, `Replicate()`, `Partial(sum)`."""
    if not isinstance(value, Instance):
        return describe_value(value)
    state = chain.from_iterable(part.values() for part in state_parts(value.state))
    plain, arguments = (
        [str(v)[:40] for v in islice(values, _MAX_PLACEMENT) if isinstance(v, int | str)]
        for values in (state, value.arguments)
    )
    return f"{value.name.rpartition('.')[2]:.80}({', '.join(plain or arguments)})"


def _encoded(text: _Value, _encoding: _Value) -> bytes:
    if not isinstance(text, str):
        raise UnreadableTensor(f"its pickle encodes {describe_value(text)}")
    return text.encode("latin-1", errors="replace")


def _collected(values: _Value = None, *_rest: _Value) -> list[_Value] | tuple[_Value, ...]:
    # Not a copy: a pickle may collect the same values again and again.
    return values if isinstance(values, list | tuple) and values else []


def _attribute(owner: _Value, name: _Value) -> _Value:
    """Return the name of a class method: pickles have it as an attribute of its class."""
    if isinstance(owner, Global) and isinstance(name, str) and len(owner.text) + len(name) <= _MAX_ATTRIBUTE:
        return Global(f"{owner.text}.{name}")
    return Instance("builtins.getattr", (owner, name), is_call=True)


def _are_lengths(value: _Value) -> bool:
    return isinstance(value, tuple) and len(value) <= MAX_NDIM and all(type(n) is int for n in value)


#: Behind storage, offset, size and stride stand whether it requires a gradient, and hooks.
FUNCTIONS: Mapping[str, Function] = {
    "collections.OrderedDict": Function(lambda *_: {}, 0, 1),
    "collections.defaultdict": Function(lambda *_: {}, 0, 2),
    "collections.deque": Function(_collected, 0, 2),
    "builtins.getattr": Function(_attribute, 2, 2),
    "__builtin__.getattr": Function(_attribute, 2, 2),
    "builtins.set": Function(_collected, 0, 1),
    "__builtin__.set": Function(_collected, 0, 1),
    "builtins.frozenset": Function(_collected, 0, 1),
    "__builtin__.frozenset": Function(_collected, 0, 1),
    "_codecs.encode": Function(_encoded, 2, 2),
    "torch.Size": Function(lambda value, *_: value, 1, 1),
    "torch.device": Function(lambda value, *_: value, 1, 2),
    "torch.serialization._get_layout": Function(lambda value, *_: value, 1, 1),
    "torch._tensor._rebuild_from_type_v2": Function(_from_type, 4, 4),
    "torch._tensor._rebuild_from_type": Function(_from_type, 3, 4),
    "torch._utils._rebuild_meta_tensor_no_storage": Function(
        lambda dtype, size, *_: Composite(
            "meta tensor without elements", {}, {"dtype": dtype, "shape": size}
        ),
        2,
        4,
    ),
    "torch._utils._rebuild_parameter": Function(lambda value, *_: value, 3, 3),
    "torch._utils._rebuild_parameter_with_state": Function(lambda value, *_: value, 4, 4),
    "torch._utils._rebuild_qtensor": Function(_quantized_tensor, 7, 7),
    "torch._utils._rebuild_sparse_tensor": Function(_sparse_tensor, 2, 2),
    "torch._utils._rebuild_tensor": Function(_tensor, 4, 4),
    "torch._utils._rebuild_tensor_v2": Function(lambda *parts: _tensor(*parts[:4], metadata=parts[6]), 6, 7),
    "torch._utils._rebuild_tensor_v3": Function(
        lambda *parts: _tensor(*parts[:4], dtype=parts[6], metadata=parts[7]), 7, 8
    ),
    "torch_npu.npu._format.Format": Function(lambda value, *_: value, 1, 1),
    # The tensor was copied to the host first, and is in host layout; the last argument is its former format.
    "torch_npu.utils.storage._rebuild_npu_tensor": Function(lambda *parts: _tensor(*parts[:4]), 6, 7),
}


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


def contents(
    value: _Value, pickle_nbytes: int
) -> tuple[Sequence[FoundTensor], Mapping[str, Any], Sequence[str]]:
    """Return the tensors in a value, and everything else.

    Args:
        value: what a pickle holds.
        pickle_nbytes: the length of that pickle.

    Returns:
        The tensors, in their order in the file; by the way to them, what is not a tensor, as plain values for
        JSON; and the functions that the pickle calls, and that nothing is known of.

    Raises:
        UnreadableTensor: it is nested too deeply, or holds too many values.
    """
    walk = _Walk(min(_MAX_VALUES, _MIN_VALUES + _VALUES_PER_BYTE * pickle_nbytes))
    rest = walk.visit(value, ())
    if rest is _TENSOR:
        rest = {}
    attributes = rest if isinstance(rest, dict) else {"": rest}
    return walk.tensors, _limited(attributes), walk.foreign


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
        elif "_modules" in state and "_parameters" in state:
            yield from _parts_of_module(state)
        else:
            yield from state.items()


def _parts_of_module(state: Mapping[_Value, _Value]) -> Iterator[tuple[_Value, _Value]]:
    for name, member in state.items():
        if name in _MODULE_STATE and isinstance(member, dict):
            yield from member.items()
        else:
            is_hidden = isinstance(name, str) and name.startswith("_")
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
