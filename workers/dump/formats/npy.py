"""Headers of npy and npz files, parsed without trusting them; and files of elements alone.

Format: numpy's `numpy.lib.format`, versions 1.0 to 3.0. `numpy.load` is not used because it refuses
bfloat16 (`<E2`), and because a header must be checked against the size of its file before anything is
allocated.

Archives of `numpy.savez` and `numpy.savez_compressed` are a zip of such files (`numpy/lib/_npyio_impl.py`).
Uncompressed arrays lie in the file as in any other format. Compressed arrays are decompressed when they are
read, which takes memory. A member whose decompressed size is not the announced one is refused, so that no
decompression takes more.
"""

from __future__ import annotations

import ast
import math
import zlib
from functools import lru_cache
from typing import TypeGuard

from workers.arrays.arrangements import StridedView, inflate
from workers.arrays.dtypes import ElementType, from_name, from_npy_descr
from workers.dump.formats.header import (
    MAX_NDIM,
    MAX_VIEW_NBYTES,
    HoldsNoTensor,
    PlacedTensor,
    ReadAt,
    TensorHeader,
    Truncated,
    assemble,
    check_expansion,
    is_addressable,
    read_exactly,
)
from workers.dump.formats.zip_archive import LOCAL_MAGIC, Archive, Member, open_archive
from workers.errors import UnreadableTensor

MAGIC = b"\x93NUMPY"
#: The longest header that is accepted, in bytes. MindSpore's has 128; numpy's own limit is 10,000.
MAX_HEADER_BYTES = 64 * 1024
#: How many bytes tell how long a header is.
PREAMBLE_NBYTES = 12


def read_headers(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    """Return the one tensor of an npy file.

    Raises:
        Truncated: the file is shorter than its header says.
        UnreadableTensor: the header is damaged, names objects, or claims less than the file holds.
    """
    length = header_length(read(0, PREAMBLE_NBYTES))
    return (parse_header(read(0, length), file_size=file_size, length=length),)


@lru_cache(maxsize=64)
def header_length(head: bytes) -> int:
    """Return the offset of the payload, from the first 12 bytes of a file.

    Raises:
        Truncated: these are fewer bytes than a header has.
        UnreadableTensor: these are not the first bytes of an npy file.
    """
    if len(head) < PREAMBLE_NBYTES:
        if head and not head.startswith(MAGIC[: len(head)]) and not MAGIC.startswith(head[: len(MAGIC)]):
            raise UnreadableTensor(f"not an npy file: it begins with {head[:6]!r}")
        raise Truncated(f"has {len(head)} bytes, fewer than an npy header")
    if not head.startswith(MAGIC):
        raise UnreadableTensor(f"not an npy file: it begins with {head[:6]!r}")
    major = head[6]
    if major == 1:
        length = 10 + int.from_bytes(head[8:10], "little")
    elif major in (2, 3):
        length = 12 + int.from_bytes(head[8:12], "little")
    else:
        raise UnreadableTensor(f"its npy format version {major} is not known")
    if length > MAX_HEADER_BYTES:
        raise UnreadableTensor(f"its npy header has {length} bytes; at most {MAX_HEADER_BYTES} are accepted")
    return length


def parse_header(head: bytes, *, file_size: int, length: int = 0) -> TensorHeader:
    """Parse and check the header of an npy file.

    Args:
        head: the first bytes of the file, at least the whole header if the file has it.
        file_size: the size of the file in bytes; the header must agree with it.
        length: the size of the header, if it is known from `header_length`.

    Raises:
        Truncated: the file is shorter than its header says.
        UnreadableTensor: the header is damaged, names objects, or claims less than the file holds.
    """
    length = length or header_length(head)
    if len(head) < length:
        raise Truncated(f"has {file_size} bytes, fewer than the {length} of its npy header")
    header = _parse_header_text(head[:length])
    announced = header.offset + header.nbytes
    if announced > file_size:
        raise Truncated(
            f"has {file_size} bytes, but its header announces {announced} "
            f"({header.element.name}, shape {header.shape})"
        )
    if announced < file_size:
        raise UnreadableTensor(
            f"has {file_size} bytes, but its header accounts for only {announced} "
            f"({header.element.name}, shape {header.shape})"
        )
    return header


@lru_cache(maxsize=1024)  # a step has thousands of files and few distinct headers
def _parse_header_text(header: bytes) -> TensorHeader:
    fields = _fields(header)
    shape, fortran_order = fields["shape"], fields["fortran_order"]
    if not _is_shape(shape) or not isinstance(fortran_order, bool):
        # Not shown: an integer of thousands of digits cannot even be made text.
        raise UnreadableTensor("its npy header has an impossible shape or order")
    element = _element(fields["descr"])
    if not is_addressable(shape, element.itemsize):
        raise UnreadableTensor("its npy header has a shape of more bytes than there are addresses")
    return TensorHeader(
        element=element,
        shape=shape,
        offset=len(header),
        nbytes=math.prod(shape) * element.itemsize,
        lead=header,
        fortran_order=fortran_order,
    )


def _fields(header: bytes) -> dict[str, object]:
    text_start = 10 if header[6] == 1 else 12
    encoding = "utf-8" if header[6] == 3 else "latin-1"
    try:
        fields = ast.literal_eval(header[text_start:].decode(encoding).strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as exc:
        raise UnreadableTensor("its npy header is not a Python literal") from exc
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise UnreadableTensor("its npy header lacks descr, fortran_order or shape")
    return fields


def _is_shape(shape: object) -> TypeGuard[tuple[int, ...]]:
    if not isinstance(shape, tuple) or len(shape) > MAX_NDIM:
        return False
    return all(type(length) is int and 0 <= length < 2**62 for length in shape)


def _element(descr: object) -> ElementType:
    if descr == "|O":
        raise HoldsNoTensor("element type |O holds pickled Python objects, which are never loaded")
    try:
        return from_npy_descr(descr if isinstance(descr, str) else repr(descr))
    except ValueError as exc:
        raise UnreadableTensor(str(exc)) from exc


def raw_header(dtype: str, shape: tuple[int, ...] | None, file_size: int) -> TensorHeader:
    """Return the one tensor of a file of raw elements.

    Args:
        dtype: name of the element type.
        shape: lengths of the axes; None puts all elements on one axis.
        file_size: the size of the file in bytes, which must agree.

    Raises:
        Truncated: the file is shorter than its type and shape require.
        UnreadableTensor: it is longer, the type is not known, or no array has such a shape.
    """
    try:
        element = from_name(dtype)
    except ValueError as exc:
        raise UnreadableTensor(str(exc)) from exc
    if shape is None:
        size = file_size * 8 // element.bits
        if element.nbytes(size) != file_size:
            raise Truncated(f"has {file_size} bytes, which is not a whole number of {dtype} elements")
        shape = (size,)
    elif len(shape) > MAX_NDIM or not is_addressable(shape, element.itemsize):
        raise UnreadableTensor(f"its name announces {len(shape)} axes, of which no array can be made")
    wanted = element.nbytes(math.prod(shape))
    if wanted != file_size:
        error = Truncated if file_size < wanted else UnreadableTensor
        raise error(f"has {file_size} bytes, but its name announces {wanted} ({dtype}, shape {shape})")
    return TensorHeader(element=element, shape=shape, offset=0, nbytes=file_size)


_MEMBER_SUFFIX = ".npy"


def read_archive_headers(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    """Return the arrays of an npz file; see `assemble`.

    Raises:
        Truncated: the file ends before the zip does.
        HoldsNoTensor: it is whole, and holds no array.
        UnreadableTensor: it is damaged, or an array has an element type that is not known.
    """
    head = read(0, min(len(LOCAL_MAGIC), file_size))
    if not head.startswith(LOCAL_MAGIC[: len(head)]):
        raise UnreadableTensor(f"is not an npz file: it begins with {head!r}")
    if len(head) < len(LOCAL_MAGIC):
        raise Truncated(f"has {file_size} bytes, fewer than the header of a zip")
    archive = open_archive(read, file_size)
    arrays = {
        name.removesuffix(_MEMBER_SUFFIX): member
        for name, member in archive.members.items()
        if name.endswith(_MEMBER_SUFFIX)
    }
    objects: list[str] = []
    placed: list[PlacedTensor] = []
    inflated = 0
    for name, member in arrays.items():
        # Before more work is done: any number of members may have the same compressed bytes.
        check_expansion(inflated, file_size)
        inflated += member.nbytes if member.is_deflated else 0
        try:
            placed.append(_placed_array(read, archive, name, member))
        except HoldsNoTensor:
            objects.append(name)
    if not placed:
        raise HoldsNoTensor("holds no array of numbers", record='{"file": {}}')
    return assemble(placed, {"pickled_objects": objects[:100]} if objects else {}, read, file_size)


def _placed_array(read: ReadAt, archive: Archive, name: str, member: Member) -> PlacedTensor:
    offset, nbytes = archive.place(read, member, compressed=member.is_deflated)
    if member.is_deflated:
        content = _inflated(read, offset, nbytes, name, member)
        header = parse_header(content[:MAX_HEADER_BYTES], file_size=len(content))
        begin, view = offset, StridedView(deflated=nbytes, skipped=header.offset)
    else:
        head = read_exactly(read, offset, min(nbytes, MAX_HEADER_BYTES))
        header = parse_header(head, file_size=nbytes)
        begin, view = offset + header.offset, None
    return PlacedTensor(
        header.element,
        header.shape,
        begin,
        header.nbytes,
        (name,),
        fortran_order=header.fortran_order,
        view=view,
    )


def _inflated(read: ReadAt, offset: int, nbytes: int, name: str, member: Member) -> bytes:
    if max(nbytes, member.nbytes) > MAX_VIEW_NBYTES:
        raise UnreadableTensor(
            f"its array {name:.80} is compressed and has {member.nbytes} bytes; "
            f"at most {MAX_VIEW_NBYTES} are read"
        )
    try:
        content = inflate(read_exactly(read, offset, nbytes), member.nbytes)
    except ValueError as exc:
        raise UnreadableTensor(f"its array {name:.80} cannot be decompressed: {exc}") from exc
    if zlib.crc32(content) != member.crc:
        raise UnreadableTensor(f"its array {name:.80} does not match its checksum")
    return content
