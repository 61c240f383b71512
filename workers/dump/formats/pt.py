"""The `.pt` files of PyTorch: what `torch.save` wrote, read without torch and without unpickling.

Such a file is a zip archive of uncompressed members:

    {stem}/data.pkl       a pickle that calls `torch._utils._rebuild_tensor_v2(storage, offset, size, ...)`
    {stem}/data/0         the bytes of the first storage
    {stem}/byteorder      `little` or `big`; since torch 2.1

(torch, `torch/serialization.py` and `torch/_utils.py`; checked against files of torch 2.13 and 2.15.) Nothing
in the pickle is executed: see `workers.dump.formats.pickle_machine`. Files of torch before 1.6, which still
writes them on request, are read by `workers.dump.formats.pt_legacy`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from workers.arrays.dtypes import ElementType, from_npy_descr
from workers.arrays.strided import StridedView, can_resolve, span_nbytes
from workers.dump.formats.assembly import (
    PlacedTensor,
    assemble,
    is_viewable,
    names_of,
)
from workers.dump.formats.header import FileParts, HoldsNoTensor, ReadAt, TensorHeader, read_exactly
from workers.dump.formats.pt_alike import MAX_PICKLE_NBYTES as MAX_KEPT_NBYTES
from workers.dump.formats.pt_alike import AlikeFiles, ReadArchive
from workers.dump.formats.pt_elements import (
    UNTYPED_STORAGE,
    check_shape,
    element_of,
    is_dense,
    is_known,
    type_name,
)
from workers.dump.formats.pt_legacy import is_legacy, read_legacy
from workers.dump.formats.pt_pickle import RebuiltTensor, unpickle
from workers.dump.formats.pt_tree import Contents, FoundTensor, InlineTensor, contents
from workers.dump.formats.zip_archive import Archive, Member, open_archive
from workers.errors import UnreadableTensor

#: The largest pickle that is read: enough for 100,000 tensors.
MAX_PICKLE_NBYTES = 32 * 1024 * 1024

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


def place_tensors(read: ReadAt, file_size: int) -> tuple[Sequence[PlacedTensor], Mapping[str, Any]]:
    """Return the tensors of a `.pt` file, and its other values by name; see `read_headers`."""
    parsed = _parse(read, file_size)
    return parsed.tensors, parsed.attributes


class _Parsed(NamedTuple):
    """What is in a file."""

    tensors: Sequence[PlacedTensor]
    attributes: Mapping[str, Any]
    archive: Archive | None = None
    """None for a file in the old format."""
    used: Sequence[Member] = ()
    """The members with the pickle, with the byte order if there is one, and with storages."""


def _parse(read: ReadAt, file_size: int) -> _Parsed:
    if is_legacy(read, file_size):
        file = read_legacy(read, file_size)
        described = _describe(contents(file.value, file.nbytes), big_endian=file.big_endian)
        return _Parsed(*_place_all(described, file.place))
    archive = open_archive(read, file_size)
    pickled = _find_pickle(archive.members)
    prefix = pickled.name.removesuffix("data.pkl")
    offset, nbytes = archive.place(read, pickled)
    if nbytes > MAX_PICKLE_NBYTES:
        raise UnreadableTensor(f"its pickle has {nbytes} bytes; at most {MAX_PICKLE_NBYTES} are read")
    code = read_exactly(read, offset, nbytes)
    big_endian = _is_big_endian(read, archive, f"{prefix}byteorder")
    describe = _described if nbytes <= MAX_KEPT_NBYTES else _described.__wrapped__
    described = describe(code, big_endian)
    tensors, attributes = _place_all(described, _storages_of(read, archive, f"{prefix}data/"))
    keys = dict.fromkeys(t.key for t in described.tensors)  # of any length, and often the same
    names = [f"{prefix}byteorder", *(f"{prefix}data/{key}" for key in keys)]
    used = [pickled, *(archive.members[name] for name in names if name in archive.members)]
    return _Parsed(tensors, attributes, archive, used)


def _place_all(described: _Described, place: _PlaceStorage) -> tuple[list[PlacedTensor], Mapping[str, Any]]:
    placed = [_placed(tensor, place) for tensor in described.tensors]
    # One whose elements lie one after the other is read in pieces, however large it is.
    too_large = [tensor for tensor in placed if tensor.view is not None and not is_viewable(tensor)]
    if not too_large:
        return placed, described.attributes
    attributes = {**described.attributes, "not_taken_out": names_of(too_large)}
    return [tensor for tensor in placed if tensor.view is None or is_viewable(tensor)], attributes


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


class _Described(NamedTuple):
    """What a pickle describes."""

    tensors: tuple[_DescribedTensor, ...]
    attributes: Mapping[str, Any]


@lru_cache(maxsize=64)
def _described(code: bytes, big_endian: bool) -> _Described:  # noqa: FBT001  (a key)
    """Return what a pickle describes. The files of a dump differ in their elements more than in these."""
    return _describe(contents(unpickle(code), len(code)), big_endian=big_endian)


_ALIKE = AlikeFiles()


def _describe(found: Contents, *, big_endian: bool) -> _Described:
    if not found.tensors:
        raise _no_tensor(found)
    return _Described(
        tuple(_describe_tensor(t, big_endian=big_endian) for t in found.tensors), found.attributes
    )


def _find_pickle(members: Mapping[str, Member]) -> Member:
    names = [name for name in members if name.endswith("/data.pkl")]
    pickles = [members[name] for name in names if name.count("/") == 1]
    if len(pickles) != 1:
        raise UnreadableTensor(
            f"is not a file of torch.save: a zip of {len(members)} members, {len(pickles)} of them data.pkl"
        )
    return pickles[0]


def _storages_of(read: ReadAt, archive: Archive, prefix: str) -> _PlaceStorage:
    places: dict[str, tuple[int, int]] = {}

    def place(key: str) -> tuple[int, int]:
        if key not in places:
            member = archive.members.get(f"{prefix}{key}")
            if member is None:
                raise UnreadableTensor(f"its storage data/{key:.40} is not in the archive")
            places[key] = archive.place(read, member)
        return places[key]

    return place


def _is_big_endian(read: ReadAt, archive: Archive, name: str) -> bool:
    member = archive.members.get(name)
    if member is None:
        return False  # torch before 2.1 does not record it, and ran on little-endian machines
    offset, nbytes = archive.place(read, member)
    order = read_exactly(read, offset, min(nbytes, 16))
    if order not in (b"little", b"big"):
        raise UnreadableTensor(f"its byte order {order!r} is not known")
    return order == b"big"


def _no_tensor(found: Contents) -> UnreadableTensor:
    if found.foreign:
        return UnreadableTensor(f"holds no tensor, and its pickle calls {found.foreign[0]:.80}")
    return HoldsNoTensor("holds values, and no tensor", record=json.dumps({"file": dict(found.attributes)}))


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
    return PlacedTensor(
        tensor.element,
        tensor.shape,
        offset + tensor.offset,
        tensor.nbytes,
        tensor.path,
        tensor.fortran_order,
        tensor.view,
        tensor.declared_dtype,
        tensor.full_name,
        tensor.attributes,
    )


def _describe_tensor(found: FoundTensor, *, big_endian: bool) -> _DescribedTensor:
    if isinstance(found.tensor, InlineTensor):
        return _DescribedTensor(_inline(found, found.tensor))
    tensor = found.tensor
    if not is_known(tensor):
        return _DescribedTensor(_storage_of(found, tensor), tensor.key, None)
    element, declared_dtype = element_of(tensor, big_endian=big_endian)
    if len(tensor.size) != len(tensor.stride):
        raise UnreadableTensor("its pickle has an impossible shape or strides")
    check_shape(tensor.size, element.itemsize)
    storage_nbytes = tensor.storage_size * (1 if tensor.storage == UNTYPED_STORAGE else element.itemsize)
    strides = tuple(stride * element.itemsize for stride in tensor.stride)
    first, span = _extent(tensor, strides, element.itemsize)
    view = _view_of(tensor, strides, element)
    order = "" if view.conjugate or view.negative else _order_of(tensor)
    placed = PlacedTensor(
        element=element,
        shape=tensor.size,
        offset=first if span else 0,
        nbytes=math.prod(tensor.size) * element.itemsize,
        path=found.path,
        fortran_order=order == "F",
        view=None if order else view,
        declared_dtype=declared_dtype,
        attributes=found.attributes,
    )
    return _DescribedTensor(placed, tensor.key, storage_nbytes, first + span if span else 0)


def _storage_of(found: FoundTensor, tensor: RebuiltTensor) -> PlacedTensor:
    """Return the whole storage of a tensor as bytes, because its element type is not known."""
    return PlacedTensor(
        element=from_npy_descr("|V1"),
        shape=(),
        offset=0,
        nbytes=0,
        path=found.path,
        declared_dtype=type_name(tensor),
        attributes={
            **found.attributes,
            "shape": [str(n) if abs(n) >= 2**63 else n for n in tensor.size],
            "strides": [str(n) if abs(n) >= 2**63 else n for n in tensor.stride],
            "storage_offset": str(tensor.offset) if abs(tensor.offset) >= 2**63 else tensor.offset,
        },
    )


def _extent(tensor: RebuiltTensor, strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Return where a tensor begins in its storage, and how much of it it spans, in bytes.

    Raises:
        UnreadableTensor: it begins before its storage, or goes backwards in it.
    """
    first = tensor.offset * itemsize
    span = span_nbytes(tensor.size, strides, itemsize) if min(strides, default=0) >= 0 else -1
    if span < 0 or first < 0:
        raise UnreadableTensor(
            f"is a view of more than its storage: shape {tensor.size}, strides {tensor.stride}, "
            f"offset {tensor.offset}"
        )
    return first, span


def _view_of(tensor: RebuiltTensor, strides: tuple[int, ...], element: ElementType) -> StridedView:
    """Return how the elements of a tensor are picked from its storage.

    Raises:
        UnreadableTensor: they are negatives or conjugates, and their type has neither.
    """
    view = StridedView(strides, conjugate=tensor.conjugate, negative=tensor.negative)
    if (view.conjugate or view.negative) and not can_resolve(view, element):
        raise UnreadableTensor(
            f"its elements of type {element.name:.40} are stored as negatives or conjugates"
        )
    return view


def _order_of(tensor: RebuiltTensor) -> str:
    """Return "C" or "F" if the elements of a tensor lie next to one another in that order, else ""."""
    if is_dense(tensor.size[::-1], tensor.stride[::-1]):
        return "C"
    return "F" if is_dense(tensor.size, tensor.stride) else ""


def _inline(found: FoundTensor, array: InlineTensor) -> PlacedTensor:
    try:
        element = from_npy_descr(array.descr)
    except ValueError as exc:
        raise UnreadableTensor(str(exc)) from exc
    check_shape(array.shape, element.itemsize)
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
