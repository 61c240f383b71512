"""The `.pt` files of PyTorch: what `torch.save` wrote, read without torch and without unpickling.

Such a file is a zip archive of uncompressed members:

    {stem}/data.pkl       a pickle that calls `torch._utils._rebuild_tensor_v2(storage, offset, size, ...)`
    {stem}/data/0         the bytes of the first storage
    {stem}/byteorder      `little` or `big`; since torch 2.1

(torch, `torch/serialization.py` and `torch/_utils.py`; checked against files of torch 2.13 and 2.15.) Nothing
in the pickle is executed: see `workers.dump.formats.pickle_machine`.

Before torch 1.6, and with `_use_new_zipfile_serialization=False`, it is five pickles one behind the other: a
magic number, the protocol 1001, what the machine was like, the value, and the keys of its storages; then for
each key the number of elements (8 bytes, little-endian) and the elements (`_legacy_save`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias

from workers.arrays.arrangements import StridedView, can_resolve, span_nbytes
from workers.arrays.dtypes import ElementType, from_name, from_npy_descr
from workers.dump.formats.header import (
    FileParts,
    HoldsNoTensor,
    PlacedTensor,
    ReadAt,
    TensorHeader,
    Truncated,
    assemble,
    is_viewable,
    names_of,
    read_exactly,
    refuse_impossible,
)
from workers.dump.formats.pickle_machine import Machine, Storage
from workers.dump.formats.pt_alike import MAX_PICKLE_NBYTES as MAX_KEPT_NBYTES
from workers.dump.formats.pt_alike import AlikeFiles, ReadArchive
from workers.dump.formats.pt_tree import (
    FUNCTIONS,
    FoundTensor,
    InlineTensor,
    RebuiltTensor,
    contents,
)
from workers.dump.formats.zip_archive import LOCAL_MAGIC, Archive, Member, open_archive
from workers.errors import UnreadableTensor

#: The largest pickle that is read: enough for 100,000 tensors. For the old format, all five.
MAX_PICKLE_NBYTES = 32 * 1024 * 1024
#: A pickle of protocol 2 that begins with torch's magic number, and the version of that format.
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9"
_LEGACY_PROTOCOL = 1001
#: Storage classes of torch (`torch/storage.py`) and our names for their elements.
_STORAGES = {
    "torch.BFloat16Storage": "bfloat16",
    "torch.BoolStorage": "bool",
    "torch.ByteStorage": "uint8",
    "torch.CharStorage": "int8",
    "torch.ComplexDoubleStorage": "complex128",
    "torch.ComplexFloatStorage": "complex64",
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.IntStorage": "int32",
    "torch.LongStorage": "int64",
    # For quantised tensors: the integers, not the values that they encode.
    "torch.QInt32Storage": "int32",
    "torch.QInt8Storage": "int8",
    "torch.QUInt8Storage": "uint8",
    "torch.ShortStorage": "int16",
}
_QUANTIZED = {
    "torch.QInt32Storage": "torch.qint32",
    "torch.QInt8Storage": "torch.qint8",
    "torch.QUInt8Storage": "torch.quint8",
}
_MAX_TYPE_NAME = 40
UNTYPED_STORAGE = "torch.storage.UntypedStorage"
#: Bytes per element of the types that torch saves in an untyped storage and names next to it.
_NAMED_DTYPES = {
    "torch.bits16": 2,
    "torch.bits1x8": 1,
    "torch.bits2x4": 1,
    "torch.bits4x2": 1,
    "torch.bits8": 1,
    "torch.complex32": 4,
    "torch.float4_e2m1fn_x2": 1,
    "torch.float8_e4m3fn": 1,
    "torch.float8_e4m3fnuz": 1,
    "torch.float8_e5m2": 1,
    "torch.float8_e5m2fnuz": 1,
    "torch.float8_e8m0fnu": 1,
    "torch.uint16": 2,
    "torch.uint32": 4,
    "torch.uint64": 8,
}

_PlaceStorage: TypeAlias = Callable[[str], tuple[int, int]]
"""Returns offset and length of a storage in the file, by its key."""


def read_headers(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    """Return the parts of a `.pt` file, and the tensors that are views of others; see `assemble`.

    Reads the two ends of the file and the pickle, never a storage.

    Args:
        read: reads parts of the file.
        file_size: bytes of the file.

    Raises:
        Truncated: the file ends before the zip does: still being written, or its writer died.
        HoldsNoTensor: it is whole, and holds other values only.
        UnreadableTensor: it is damaged.
    """
    return read_parts(read, file_size).complete


def read_parts(read: ReadAt, file_size: int) -> FileParts:
    """Return what a `.pt` file consists of; see `read_headers`."""
    if parts := _ALIKE.find(read, file_size):
        return parts
    parsed = _parse(read, file_size)
    headers = assemble(parsed.tensors, parsed.attributes, read, file_size)
    if parsed.archive is not None:
        _ALIKE.remember(ReadArchive(read, file_size, parsed.archive, parsed.used, parsed.attributes, headers))
    return FileParts(headers)


_ALIKE = AlikeFiles()


def place_tensors(read: ReadAt, file_size: int) -> tuple[Sequence[PlacedTensor], Mapping[str, Any]]:
    """Return the tensors of a `.pt` file, and its other values by name; see `read_headers`."""
    return _parse(read, file_size)[:2]


class _Parsed(NamedTuple):
    tensors: Sequence[PlacedTensor]
    attributes: Mapping[str, Any]
    archive: Archive | None = None
    """None for a file in the old format."""
    used: Sequence[Member] = ()
    """The members with the pickle, with the byte order if there is one, and with storages."""


def _parse(read: ReadAt, file_size: int) -> _Parsed:
    head = read(0, min(len(LEGACY_MAGIC), file_size))
    if head.startswith(LEGACY_MAGIC):
        return _parse_legacy(read, file_size)
    if not head.startswith(LOCAL_MAGIC[: len(head)]):
        raise UnreadableTensor(f"is not a file of torch.save: it begins with {head[:4]!r}")
    if len(head) < len(LOCAL_MAGIC):
        raise Truncated(f"has {file_size} bytes, fewer than the header of a zip")
    archive = open_archive(read, file_size)
    members = archive.members
    pickles = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise UnreadableTensor(
            f"is not a file of torch.save: a zip of {len(members)} members, {len(pickles)} of them data.pkl"
        )
    pickled, prefix = members[pickles[0]], pickles[0].removesuffix("data.pkl")
    offset, nbytes = archive.place(read, pickled)
    if nbytes > MAX_PICKLE_NBYTES:
        raise UnreadableTensor(f"its pickle has {nbytes} bytes; at most {MAX_PICKLE_NBYTES} are read")
    code = read_exactly(read, offset, nbytes)
    big_endian = _is_big_endian(read, archive, f"{prefix}byteorder")
    describe = _described if nbytes <= MAX_KEPT_NBYTES else _described.__wrapped__
    described = describe(code, big_endian)

    @cache  # of this file; any number of tensors may be views of one storage
    def place(key: str) -> tuple[int, int]:
        member = members.get(f"{prefix}data/{key}")
        if member is None:
            raise UnreadableTensor(f"its storage data/{key:.40} is not in the archive")
        return archive.place(read, member)

    keys = dict.fromkeys(tensor.key for tensor in described[0])  # of any length, and often the same
    names = [f"{prefix}byteorder", *(f"{prefix}data/{key}" for key in keys)]
    used = [pickled, *(members[name] for name in names if name in members)]
    return _Parsed(*_place_all(*described, place), archive, used)


def _is_big_endian(read: ReadAt, archive: Archive, name: str) -> bool:
    member = archive.members.get(name)
    if member is None:
        return False  # torch before 2.1 does not record it, and ran on little-endian machines
    offset, nbytes = archive.place(read, member)
    order = read_exactly(read, offset, min(nbytes, 16))
    if order not in (b"little", b"big"):
        raise UnreadableTensor(f"its byte order {order!r} is not known")
    return order == b"big"


def _legacy_places(
    read: ReadAt, file_size: int, begin: int, keys: Sequence[str], storages: Mapping[str, Storage]
) -> dict[str, tuple[int, int]]:
    places: dict[str, tuple[int, int]] = {}
    at = begin
    for key in keys:
        if key not in storages or key in places:
            raise UnreadableTensor(f"its storage {key:.40} is not the one of a tensor")
        # The pickle alone tells the types of storages.
        nbytes = int.from_bytes(read_exactly(read, at, 8), "little") * _storage_itemsize(storages[key].kind)
        places[key] = (at + 8, nbytes)
        at += 8 + nbytes
        if at > file_size:
            raise Truncated(f"has {file_size} bytes, and its storage {key:.40} ends at {at}")
    return places


def _parse_legacy(read: ReadAt, file_size: int) -> _Parsed:
    code = read_exactly(read, 0, min(file_size, MAX_PICKLE_NBYTES))
    values: list[Any] = []
    storages: dict[str, Storage] = {}
    end = 0
    for functions in ({}, {}, {}, FUNCTIONS, {}):
        pickled = Machine(code, functions, end)
        values.append(pickled.run())
        storages |= {storage.key: storage for storage in pickled.storages}
        end = pickled.end
    _, protocol, machine, value, keys = values
    if protocol != _LEGACY_PROTOCOL or not isinstance(machine, dict):
        raise UnreadableTensor("is not in a format of torch.save that is known")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise UnreadableTensor("its list of storages is damaged")
    places = _legacy_places(read, file_size, end, keys, storages)

    def place(key: str) -> tuple[int, int]:
        if key not in places:
            raise UnreadableTensor(f"its storage {key:.40} is not in the file")
        return places[key]

    described = _describe(*contents(value, end), big_endian=machine.get("little_endian") is False)
    return _Parsed(*_place_all(*described, place))


class _DescribedTensor(NamedTuple):
    """A tensor as the pickle describes it: everything but the place of its storage."""

    tensor: PlacedTensor
    """As if its storage began the file."""
    key: str = ""
    """Its storage; "" for one in the pickle."""
    storage_nbytes: int | None = 0
    """None if only the archive tells."""
    end: int = 0
    """The byte of the storage after its last element."""


_Description: TypeAlias = tuple[Sequence[_DescribedTensor], Mapping[str, Any]]


@lru_cache(maxsize=64)
def _described(code: bytes, big_endian: bool) -> _Description:  # noqa: FBT001  (a key)
    """Return what a pickle describes. The files of a dump differ in their elements more than in these."""
    return _describe(*contents(Machine(code, FUNCTIONS).run(), len(code)), big_endian=big_endian)


def _describe(
    tensors: Sequence[FoundTensor], attributes: Mapping[str, Any], foreign: Sequence[str], *, big_endian: bool
) -> _Description:
    if tensors:
        return [_describe_tensor(tensor, big_endian=big_endian) for tensor in tensors], attributes
    if foreign:
        raise UnreadableTensor(f"holds no tensor, and its pickle calls {foreign[0]:.80}")
    raise HoldsNoTensor("holds values, and no tensor", record=json.dumps({"file": dict(attributes)}))


def _place_all(
    described: Sequence[_DescribedTensor], attributes: Mapping[str, Any], place: _PlaceStorage
) -> tuple[Sequence[PlacedTensor], Mapping[str, Any]]:
    placed = [_placed(tensor, place) for tensor in described]
    # One whose elements lie one after the other is read in pieces, however large it is.
    too_large = [tensor for tensor in placed if tensor.view is not None and not is_viewable(tensor)]
    if not too_large:
        return placed, attributes
    kept = [tensor for tensor in placed if tensor.view is None or is_viewable(tensor)]
    return kept, {**attributes, "not_taken_out": names_of(too_large)}


def _placed(described: _DescribedTensor, place: _PlaceStorage) -> PlacedTensor:
    """Return a tensor where its storage is.

    Raises:
        UnreadableTensor: the storage is not in the file, or not as large as the pickle says.
    """
    tensor = described.tensor
    if not described.key:
        return tensor
    offset, nbytes = place(described.key)
    if described.storage_nbytes is None:
        return replace(tensor, offset=offset, shape=(nbytes,), nbytes=nbytes)
    if described.storage_nbytes != nbytes:
        raise UnreadableTensor(
            f"its storage has {nbytes} bytes, but its pickle announces {described.storage_nbytes}"
        )
    if described.end > nbytes:
        raise UnreadableTensor(
            f"is a view of more than its storage: shape {tensor.shape}, {described.end} bytes of {nbytes}"
        )
    return replace(tensor, offset=offset + tensor.offset)


def _describe_tensor(found: FoundTensor, *, big_endian: bool) -> _DescribedTensor:
    if isinstance(found.tensor, InlineTensor):
        return _DescribedTensor(_inline(found, found.tensor))
    tensor = found.tensor
    known = element_of(tensor, big_endian=big_endian)
    if known is None:
        return _DescribedTensor(_storage_of(found, tensor), tensor.key, None)
    element, declared_dtype = known
    if len(tensor.size) != len(tensor.stride):
        raise UnreadableTensor("its pickle has an impossible shape or strides")
    refuse_impossible(tensor.size, element.itemsize, of="its pickle ")
    strides = tuple(stride * element.itemsize for stride in tensor.stride)
    first = tensor.offset * element.itemsize
    span = span_nbytes(tensor.size, strides, element.itemsize) if min(strides, default=0) >= 0 else -1
    if span < 0 or first < 0:
        raise UnreadableTensor(
            f"is a view of more than its storage: shape {tensor.size}, strides {tensor.stride}, "
            f"offset {tensor.offset}"
        )
    view = StridedView(strides, conjugate=tensor.conjugate, negative=tensor.negative)
    is_resolved = view.conjugate or view.negative
    if is_resolved and not can_resolve(view, element):
        raise UnreadableTensor(
            f"its elements of type {element.name:.40} are stored as negatives or conjugates"
        )
    in_c_order = not is_resolved and is_dense(tensor.size[::-1], tensor.stride[::-1])
    in_fortran_order = not is_resolved and not in_c_order and is_dense(tensor.size, tensor.stride)
    placed = PlacedTensor(
        element=element,
        shape=tensor.size,
        offset=first if span else 0,
        nbytes=math.prod(tensor.size) * element.itemsize,
        path=found.path,
        fortran_order=in_fortran_order,
        view=None if in_c_order or in_fortran_order else view,
        declared_dtype=declared_dtype,
        attributes=found.attributes,
    )
    storage_nbytes = tensor.storage_size * _storage_itemsize(tensor.storage)
    return _DescribedTensor(placed, tensor.key, storage_nbytes, first + span if span else 0)


def _storage_of(found: FoundTensor, tensor: RebuiltTensor) -> PlacedTensor:
    """Return the whole storage of a tensor as bytes, because its element type is not known."""
    geometry = {"shape": tensor.size, "strides": tensor.stride, "storage_offset": (tensor.offset,)}
    shown = {name: [str(n) if abs(n) >= 2**63 else n for n in numbers] for name, numbers in geometry.items()}
    return PlacedTensor(
        element=from_npy_descr("|V1"),
        shape=(),
        offset=0,
        nbytes=0,
        path=found.path,
        declared_dtype=type_name(tensor),
        attributes={**found.attributes, **shown, "storage_offset": shown["storage_offset"][0]},
    )


def _inline(found: FoundTensor, array: InlineTensor) -> PlacedTensor:
    try:
        element = from_npy_descr(array.descr)
    except ValueError as exc:
        raise UnreadableTensor(str(exc)) from exc
    refuse_impossible(array.shape, element.itemsize, of="its pickle ")
    nbytes = math.prod(array.shape) * element.itemsize
    if nbytes != len(array.content):
        raise UnreadableTensor(f"has an array of shape {array.shape} made of {len(array.content)} bytes")
    return PlacedTensor(
        element=element,
        shape=array.shape,
        offset=0,
        nbytes=nbytes,
        path=found.path,
        fortran_order=array.fortran_order,
        view=StridedView(inline=array.content),
        attributes=found.attributes,
    )


def element_of(tensor: RebuiltTensor, *, big_endian: bool) -> tuple[ElementType, str] | None:
    """Return the element type of a tensor, and torch's name if that is another.

    None if it is not known where each element is in its storage: `quint4x2` and `quint2x4`, whose elements
    share bytes, and types of a later torch.
    """
    if tensor.storage == UNTYPED_STORAGE:
        return _named_element(tensor.dtype, big_endian=big_endian) if tensor.dtype in _NAMED_DTYPES else None
    if tensor.dtype or tensor.storage not in _STORAGES:
        return None
    element, declared = from_name(_STORAGES[tensor.storage]), _QUANTIZED.get(tensor.storage, "")
    if not big_endian or element.itemsize == 1:
        return element, declared
    if element.name == "bfloat16":
        return from_npy_descr("|V2"), "big-endian torch.bfloat16"
    # By its descr: some types are not kept as numbers in this order.
    return from_npy_descr(element.to_numpy().newbyteorder(">").str), declared


def _named_element(dtype: str, *, big_endian: bool) -> tuple[ElementType, str]:
    itemsize = _NAMED_DTYPES[dtype]
    try:
        return from_name(dtype.removeprefix("torch."), big_endian=big_endian and itemsize > 1), ""
    except ValueError:
        # As bytes: statistics of integers would describe numbers that never existed.
        return from_npy_descr(f"|V{itemsize}"), dtype


def type_name(tensor: RebuiltTensor) -> str:
    """Return torch's name for the element type of a tensor for which `element_of` has none.

    >>> type_name(RebuiltTensor("torch.QUInt4x2Storage", "0", 8, 0, (4, 4), (4, 1)))
    'torch.quint4x2'
    """
    if tensor.dtype or tensor.storage == UNTYPED_STORAGE:
        return tensor.dtype[:_MAX_TYPE_NAME]
    module, _, storage = tensor.storage.rpartition(".")
    return f"{module}.{storage.removesuffix('Storage').lower()}"[:_MAX_TYPE_NAME]


def _storage_itemsize(kind: str) -> int:
    if kind == UNTYPED_STORAGE:
        return 1
    if kind not in _STORAGES:
        raise UnreadableTensor(f"its storage {kind:.40} is not known")
    return from_name(_STORAGES[kind]).itemsize


def is_dense(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether each stride is the product of the sizes before it; any will do for an axis of one."""
    expected = 1
    for n, step in zip(size, stride, strict=True):
        if n != 1 and step != expected and 0 not in size:
            return False
        expected *= n
    return True
