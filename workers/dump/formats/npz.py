"""Archives of `numpy.savez` and `numpy.savez_compressed`: a zip of npy files.

(numpy, `numpy/lib/_npyio_impl.py`.)
Uncompressed arrays lie in the file as in any other format. Compressed arrays are decompressed when they are
read, which takes memory. This module refuses a member whose decompressed size is not the announced one, so
that no decompression takes more.
"""

from __future__ import annotations

import zlib

from workers.arrays.arrangements import StridedView, inflate
from workers.dump.formats import npy
from workers.dump.formats.header import (
    MAX_VIEW_NBYTES,
    HoldsNoTensor,
    PlacedTensor,
    ReadAt,
    TensorHeader,
    Truncated,
    assemble,
    check_expansion,
    read_exactly,
)
from workers.dump.formats.zip_archive import LOCAL_MAGIC, Archive, Member, open_archive
from workers.errors import UnreadableTensor

_SUFFIX = ".npy"


def read_headers(read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
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
        name.removesuffix(_SUFFIX): member
        for name, member in archive.members.items()
        if name.endswith(_SUFFIX)
    }
    objects: list[str] = []
    placed: list[PlacedTensor] = []
    inflated = 0
    for name, member in arrays.items():
        # Before more work is done: any number of members may have the same compressed bytes.
        check_expansion(inflated, file_size)
        inflated += member.nbytes if member.is_deflated else 0
        try:
            placed.append(_placed(read, archive, name, member))
        except HoldsNoTensor:
            objects.append(name)
    if not placed:
        raise HoldsNoTensor("holds no array of numbers", record='{"file": {}}')
    return assemble(placed, {"pickled_objects": objects[:100]} if objects else {}, read, file_size)


def _placed(read: ReadAt, archive: Archive, name: str, member: Member) -> PlacedTensor:
    if not member.is_deflated:
        offset, nbytes = archive.place(read, member)
        head = read_exactly(read, offset, min(nbytes, npy.MAX_HEADER_BYTES))
        header = npy.parse_header(head, file_size=nbytes)
        return PlacedTensor(
            header.element,
            header.shape,
            offset + header.offset,
            header.nbytes,
            (name,),
            fortran_order=header.fortran_order,
        )
    offset, nbytes = archive.place(read, member, compressed=True)
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
    header = npy.parse_header(content[: npy.MAX_HEADER_BYTES], file_size=len(content))
    view = StridedView(deflated=nbytes, skipped=header.offset)
    return PlacedTensor(
        header.element,
        header.shape,
        offset,
        header.nbytes,
        (name,),
        fortran_order=header.fortran_order,
        view=view,
    )
