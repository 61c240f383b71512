"""The `.pt` files of PyTorch: one tensor saved by `torch.save`, read without torch and without unpickling.

Such a file is a zip archive of uncompressed members:

    {stem}/data.pkl       a pickle that calls `torch._utils._rebuild_tensor_v2(storage, offset, size, ...)`
    {stem}/data/0         the bytes of the storage
    {stem}/byteorder      `little` or `big`; since torch 2.1

(torch, `torch/serialization.py` and `torch/_utils.py`; checked against files of torch 2.13 and 2.15.) The zip
is read here and not by `zipfile`, because the place of the payload is needed and not its content. Nothing in
the pickle is executed: see `workers.dump.formats.pickle_machine`.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from workers.arrays.dtypes import ElementType, from_name, from_npy_descr
from workers.dump.formats.header import MAX_NDIM, ReadAt, TensorHeader, Truncated
from workers.dump.formats.pt_pickle import RebuiltTensor, rebuilt_tensor
from workers.errors import UnreadableTensor

#: At most this many bytes may be before the payload, and after it: the pickle and the directory included.
MAX_AROUND_NBYTES = 64 * 1024

_LOCAL_MAGIC = b"PK\x03\x04"
#: A pickle of protocol 2 that begins with torch's magic number: the format before torch 1.6.
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9"
# The records of PKWARE's APPNOTE.TXT 4.3.7, 4.3.12, 4.3.14, 4.3.15 and 4.3.16.
_LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_MAX_COMMENT_NBYTES = 65535
_ENCRYPTED = 1

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
    "torch.ShortStorage": "int16",
}
_UNTYPED_STORAGE = "torch.storage.UntypedStorage"
#: Bytes per element of the types that torch saves in an untyped storage and names next to it.
_NAMED_DTYPES = {
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


@dataclass(frozen=True, slots=True)
class _Member:
    """One member of the archive, as its central directory describes it."""

    name: str
    method: int
    flags: int
    stored_nbytes: int
    nbytes: int
    header_offset: int


def read_headers(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    """Return the one tensor of a `.pt` file.

    Reads the two ends of the file, never the payload.

    Args:
        read: reads parts of the file.
        file_size: bytes of the file.

    Raises:
        Truncated: the file ends before the zip does: still being written, or its writer died.
        UnreadableTensor: it is damaged, or does not hold exactly one tensor that is contiguous, in C or
            Fortran order, and covers its storage.
    """
    _check_beginning(read, file_size)
    directory_offset, directory = _read_directory(read, file_size)
    members = _parse_directory(directory)
    pickled = _find_pickle(members)
    prefix = pickled.name.removesuffix("data.pkl")
    offset, nbytes = _place(read, pickled, directory_offset)
    if nbytes > MAX_AROUND_NBYTES:
        raise UnreadableTensor(f"is not a single tensor: its pickle has {nbytes} bytes")
    tensor = rebuilt_tensor(_read_exactly(read, offset, nbytes))
    big_endian = _is_big_endian(read, members.get(f"{prefix}byteorder"), directory_offset)
    payload = members.get(f"{prefix}data/{tensor.key}")
    if payload is None:
        raise UnreadableTensor(f"its storage data/{tensor.key:.40} is not in the archive")
    offset, nbytes = _place(read, payload, directory_offset)
    element, declared_dtype = _element(tensor, big_endian=big_endian)
    fortran_order = _check_geometry(tensor, element.itemsize, nbytes)
    end = offset + nbytes
    if offset > MAX_AROUND_NBYTES or file_size - end > MAX_AROUND_NBYTES:
        raise UnreadableTensor(
            f"is not a single tensor: {offset} bytes are before its payload and {file_size - end} after it"
        )
    return (
        TensorHeader(
            element=element,
            shape=tensor.size,
            offset=offset,
            nbytes=nbytes,
            lead=_read_exactly(read, 0, offset),
            tail=_read_exactly(read, end, file_size - end),
            fortran_order=fortran_order,
            declared_dtype=declared_dtype,
        ),
    )


def _read_exactly(read: ReadAt, offset: int, nbytes: int) -> bytes:
    data = read(offset, nbytes)
    if len(data) < nbytes:
        raise Truncated(f"ends at byte {offset + len(data)}; it was longer when its size was read")
    return data


def _check_beginning(read: ReadAt, file_size: int) -> None:
    head = read(0, min(len(_LEGACY_MAGIC), file_size))
    if head.startswith(_LEGACY_MAGIC):
        raise UnreadableTensor("is in the format of torch before 1.6, which is not supported")
    if not head.startswith(_LOCAL_MAGIC[: len(head)]):
        raise UnreadableTensor(f"is not a file of torch.save: it begins with {head[:4]!r}")
    if len(head) < len(_LOCAL_MAGIC):
        raise Truncated(f"has {file_size} bytes, fewer than the header of a zip")


def _read_directory(read: ReadAt, file_size: int) -> tuple[int, bytes]:
    """Return the offset of the central directory, and its bytes."""
    end_offset, end = _find_end(read, file_size)
    _, _, _, _, count, nbytes, offset, _ = _END.unpack(end)
    if count == 0xFFFF or 0xFFFFFFFF in (nbytes, offset):
        nbytes, offset = _read_end64(read, end_offset)
    if offset + nbytes > end_offset:
        raise UnreadableTensor(
            f"its zip directory of {nbytes} bytes at {offset} does not fit before {end_offset}"
        )
    if nbytes > MAX_AROUND_NBYTES:
        raise UnreadableTensor(f"is not a single tensor: its zip directory has {nbytes} bytes")
    return offset, _read_exactly(read, offset, nbytes)


def _find_end(read: ReadAt, file_size: int) -> tuple[int, bytes]:
    # torch writes no comment, so the record is nearly always the last 22 bytes.
    for nbytes in (_END.size, _END.size + _MAX_COMMENT_NBYTES):
        start = max(file_size - nbytes, 0)
        last = _read_exactly(read, start, file_size - start)
        at = last.rfind(b"PK\x05\x06")
        while at >= 0:
            end = last[at : at + _END.size]
            if len(end) == _END.size and at + _END.size + int.from_bytes(end[20:], "little") == len(last):
                return start + at, end
            at = last.rfind(b"PK\x05\x06", 0, at)
    raise Truncated(f"has {file_size} bytes, but no end record of a zip")


def _read_end64(read: ReadAt, end_offset: int) -> tuple[int, int]:
    """Return size and offset of the central directory of a zip of more than 4 GiB."""
    if end_offset < _LOCATOR64.size:
        raise UnreadableTensor("its zip lacks the zip64 record that it needs")
    magic, _, offset, _ = _LOCATOR64.unpack(
        _read_exactly(read, end_offset - _LOCATOR64.size, _LOCATOR64.size)
    )
    if magic != b"PK\x06\x07" or offset + _END64.size > end_offset:
        raise UnreadableTensor("its zip lacks the zip64 record that it needs")
    magic, *_, nbytes, directory_offset = _END64.unpack(_read_exactly(read, offset, _END64.size))
    if magic != b"PK\x06\x06":
        raise UnreadableTensor("its zip64 record is damaged")
    return nbytes, directory_offset


def _parse_directory(directory: bytes) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    at = 0
    while at < len(directory):
        if len(directory) - at < _ENTRY.size:
            raise UnreadableTensor(f"its zip directory ends in the middle of an entry, at byte {at}")
        (magic, _, _, flags, method, _, _, _, stored, nbytes, name_n, extra_n, comment_n, _, _, _, offset) = (
            _ENTRY.unpack_from(directory, at)
        )
        after = at + _ENTRY.size + name_n + extra_n + comment_n
        if magic != b"PK\x01\x02" or after > len(directory):
            raise UnreadableTensor(f"its zip directory is damaged at byte {at}")
        at += _ENTRY.size
        name = directory[at : at + name_n].decode(errors="replace")
        nbytes, stored, offset = _wide_figures(directory[at + name_n :][:extra_n], [nbytes, stored, offset])
        if name in members:
            raise UnreadableTensor(f"its zip has two members named {name:.80}")
        members[name] = _Member(name, method, flags, stored, nbytes, offset)
        at = after
    return members


def _wide_figures(extra: bytes, figures: list[int]) -> list[int]:
    """Replace each 32-bit figure that is marked as too small by the 64-bit one of the zip64 field."""
    wide = b""
    while len(extra) >= 4:
        kind, nbytes = struct.unpack_from("<2H", extra)
        if kind == 1:
            wide = extra[4 : 4 + nbytes]
        extra = extra[4 + nbytes :]
    result = []
    for figure in figures:
        if figure == 0xFFFFFFFF:
            if len(wide) < 8:
                raise UnreadableTensor("its zip directory lacks a 64-bit figure")
            figure, wide = int.from_bytes(wide[:8], "little"), wide[8:]  # noqa: PLW2901 the wide one instead
        result.append(figure)
    return result


def _find_pickle(members: dict[str, _Member]) -> _Member:
    pickles = [member for name, member in members.items() if name.partition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise UnreadableTensor(
            f"is not a file of torch.save: a zip of {len(members)} members, {len(pickles)} of them data.pkl"
        )
    return pickles[0]


def _place(read: ReadAt, member: _Member, directory_offset: int) -> tuple[int, int]:
    """Return offset and length of the content of a member."""
    if member.method != 0 or member.flags & _ENCRYPTED or member.stored_nbytes != member.nbytes:
        raise UnreadableTensor(f"its member {member.name:.80} is compressed or encrypted")
    if member.header_offset + _LOCAL.size > directory_offset:
        raise UnreadableTensor(f"its member {member.name:.80} is outside of the archive")
    header = _LOCAL.unpack(_read_exactly(read, member.header_offset, _LOCAL.size))
    if header[0] != _LOCAL_MAGIC:
        raise UnreadableTensor(f"its member {member.name:.80} has no header at byte {member.header_offset}")
    offset = member.header_offset + _LOCAL.size + header[-2] + header[-1]
    if offset + member.nbytes > directory_offset:
        raise UnreadableTensor(
            f"its member {member.name:.80} of {member.nbytes} bytes is outside of the archive"
        )
    return offset, member.nbytes


def _is_big_endian(read: ReadAt, member: _Member | None, directory_offset: int) -> bool:
    if member is None:
        return False  # torch before 2.1 does not record it, and ran on little-endian machines
    offset, nbytes = _place(read, member, directory_offset)
    order = _read_exactly(read, offset, min(nbytes, 16))
    if order not in (b"little", b"big"):
        raise UnreadableTensor(f"its byte order {order!r} is not known")
    return order == b"big"


def _element(tensor: RebuiltTensor, *, big_endian: bool) -> tuple[ElementType, str]:
    """Return the element type, and torch's name for it if that is another."""
    if tensor.storage == _UNTYPED_STORAGE:
        return _named_element(tensor.dtype, big_endian=big_endian)
    if tensor.storage not in _STORAGES or tensor.dtype:
        raise UnreadableTensor(f"its storage {tensor.storage:.40} is not known")
    name = _STORAGES[tensor.storage]
    element = from_name(name)
    if not big_endian or element.itemsize == 1:
        return element, ""
    if name == "bfloat16":
        return from_npy_descr("|V2"), "big-endian torch.bfloat16"
    # By its descr: some types are not kept as numbers in this order.
    return from_npy_descr(element.to_numpy().newbyteorder(">").str), ""


def _named_element(dtype: str, *, big_endian: bool) -> tuple[ElementType, str]:
    """Return the same for elements in an untyped storage, whose type is named next to it."""
    if dtype not in _NAMED_DTYPES:
        raise UnreadableTensor(f"its element type {dtype or 'without a name':.40} is not known")
    itemsize = _NAMED_DTYPES[dtype]
    try:
        return from_name(dtype.removeprefix("torch."), big_endian=big_endian and itemsize > 1), ""
    except ValueError:
        # As bytes: statistics of integers would describe numbers that never existed.
        return from_npy_descr(f"|V{itemsize}"), dtype


def _check_geometry(tensor: RebuiltTensor, itemsize: int, nbytes: int) -> bool:
    """Check that the tensor covers its whole storage; return whether it does so only in Fortran order."""
    _check_size(tensor, itemsize)
    size, stride = tensor.size, tensor.stride
    storage_nbytes = tensor.storage_size * (1 if tensor.storage == _UNTYPED_STORAGE else itemsize)
    if storage_nbytes != nbytes:
        raise UnreadableTensor(f"its storage has {nbytes} bytes, but its pickle announces {storage_nbytes}")
    c_order, f_order = _is_dense(size[::-1], stride[::-1]), _is_dense(size, stride)
    covers_storage = tensor.offset == 0 and math.prod(size) * itemsize == nbytes
    if not (covers_storage and (c_order or f_order)):
        raise UnreadableTensor(
            f"is a view of a part of its storage, or in another order: shape {size}, strides {stride}, "
            f"offset {tensor.offset}, of {nbytes // itemsize} elements"
        )
    return not c_order


def _check_size(tensor: RebuiltTensor, itemsize: int) -> None:
    size = tensor.size
    if len(size) != len(tensor.stride) or len(size) > MAX_NDIM or not all(0 <= n < 2**62 for n in size):
        raise UnreadableTensor("its pickle has an impossible shape or strides")
    # Even if another axis is 0: numpy could not make an array of that shape.
    if math.prod(n for n in size if n) * itemsize >= 2**63:
        raise UnreadableTensor("its pickle has a shape of more bytes than there are addresses")


def _is_dense(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether each stride is the product of the sizes before it; any will do for an axis of one."""
    expected = 1
    for n, step in zip(size, stride, strict=True):
        if n != 1 and step != expected and 0 not in size:
            return False
        expected *= n
    return True
