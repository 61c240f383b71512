"""Inspection of the files of a step before it is planned: their headers, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec
import xxhash

from ingest.layouts.base import Description, Listing, Problem, TensorFile
from workers.dump.formats import distcp, npy, overflow, pt, safetensors, tensor_proto
from workers.dump.formats.header import Container, FileParts, HoldsNoTensor, ReadAt, TensorHeader, Truncated
from workers.dump.formats.overflow import OverflowRecord
from workers.dump.source import DISK_ERRORS, OpenFile, envelope_digest
from workers.errors import AccessDenied, SourceChanged, UnreadableTensor
from workers.host.heartbeat import beat
from workers.model import SourceFile

#: Bytes of each file that are read before it is planned: its header, and enough payload to recognise copies.
HEAD_BYTES = 4096
#: A file up to this size is read as a whole.
_WHOLE_BYTES = 4 * HEAD_BYTES
#: The operator type in the names of overflow records.
OVERFLOW_OP_TYPE = "Opdebug"
#: Payload bytes by which possible copies are recognised.
SAMPLE_BYTES = 3072
#: Returns what equal samples have in common.
sample_digest = xxhash.xxh3_64_intdigest
#: After an npy header up to this size, they are within the head.
_NPY_HEADER_BYTES = HEAD_BYTES - SAMPLE_BYTES


class Inspection(msgspec.Struct, frozen=True):
    """What the content of one file says, as far as it was read."""

    headers: tuple[TensorHeader, ...] = ()
    samples: tuple[int | None, ...] = ()
    """Hash of the first payload bytes of each tensor: equal for copies. None if it is not a payload."""
    problem: str = ""
    may_grow: bool = False
    """Whether the file is too short, but may still be written to."""
    readable: bool = True
    """Whether the disk returns its bytes."""
    envelope_digest: int | None = None
    """Digest of all bytes of a file but the payload of its only header, which does not have them; None if
    headers have their envelopes."""
    record: str = ""
    """What else is known of the only tensor of such a file, as JSON; of a file without tensors, what it holds
    instead. "" if that is not known."""
    note: str = ""
    """Why a file holds no tensor, although nothing is wrong with it."""
    overflow: OverflowRecord | None = None
    is_poison: bool = False


@dataclass(frozen=True, slots=True)
class Inspected:
    """A listing, with what is known of the content of its files."""

    listing: Listing
    description: Description
    inspections: Mapping[str, Inspection]
    """Those of the files that hold tensors or overflow records, by path."""
    denied: tuple[Problem, ...] = ()

    @property
    def unreadable(self) -> list[str]:
        """The files whose bytes the disk does not return, or that are poison as bytes, in order of path."""
        return sorted(path for path, inspection in self.inspections.items() if not inspection.readable)

    @property
    def undecoded(self) -> list[str]:
        """The files that are poison as tensors, but not as bytes, in order of path."""
        return sorted(
            path
            for path, inspection in self.inspections.items()
            if inspection.is_poison and inspection.readable
        )

    @property
    def poison(self) -> tuple[SourceFile, ...]:
        """The files that kill the process that reads them."""
        files = self.listing.files
        return tuple(f for f in files if f.path in self.inspections and self.inspections[f.path].is_poison)

    @property
    def unfinished(self) -> str:
        """The first file that may still be written to; "" if there is none."""
        for path, inspection in self.inspections.items():
            if inspection.may_grow:
                return path
        # Of an unsettled one, the row of mapping.csv is missing.
        unsettled = (path for path, named in self.description.named.items() if not named.settled)
        return next(unsettled, self.description.unfinished)


def inspect(
    root: Path,
    listing: Listing,
    description: Description,
    unreadable: Collection[str] = (),
    poison: Mapping[SourceFile, bool] = MappingProxyType({}),
) -> Inspected:
    """Read the first bytes of every tensor file of a listing.

    Args:
        root: the dump.
        listing: the step.
        description: from `Dump.describe`.
        unreadable: files that are known not to be readable to their end.
        poison: files that are known to kill the process that reads them, as they are now; and whether their
            bytes may be read if they are not decoded.

    Raises:
        SourceChanged: a file vanished or changed since it was listed, or cannot be read at the moment.
    """
    inspections: dict[str, Inspection] = {}
    denied: list[Problem] = []
    dump, where = str(root), str(listing.key)
    for file in listing.files:
        beat()
        if file.path in unreadable:
            inspections[file.path] = _UNREADABLE
            continue
        if poison and file in poison:
            inspections[file.path] = _POISON[poison[file]]
            continue
        named = description.named.get(file.path)
        if named is None and not _may_be_overflow_json(file):
            continue
        try:
            inspections[file.path] = _inspect_file(dump, file, where, named)
        except AccessDenied as exc:
            denied.append(Problem(file.path, "permission denied", exc.hint, denied=True))
    return Inspected(listing, description, inspections, tuple(denied))


def _inspect_file(dump: str, file: SourceFile, where: str, named: TensorFile | None) -> Inspection:
    try:
        if named is not None and 0 < file.size <= _WHOLE_BYTES:
            # All of a small file, the tensor and what stands behind it, arrives in one system call.
            content = bytearray(file.size)
            if OpenFile.read_at_once(dump, file, (content,), 0, file.size):
                return _inspect_tensors(bytes(content), None, file, named)
        with OpenFile(dump, file, where) as opened:
            if named is not None:
                head = opened.read_at(0, _WHOLE_BYTES if file.size <= _WHOLE_BYTES else HEAD_BYTES)
                return _inspect_tensors(head, opened, file, named)
            return Inspection(overflow=overflow.parse_json(opened.read_at(0, file.size)))
    except (AccessDenied, SourceChanged):
        raise
    except UnreadableTensor as exc:
        return Inspection(problem=exc.message, may_grow=file.writable)
    except OSError as exc:
        if exc.errno not in DISK_ERRORS:
            raise SourceChanged(f"{where}: {file.path} cannot be read now: {exc.strerror}") from exc
        return Inspection(problem=f"cannot be read: {exc.strerror}", readable=False)


_UNREADABLE = Inspection(problem="cannot be read: the disk does not return its bytes", readable=False)
#: By whether the bytes of the file may be read.
_POISON = {
    True: Inspection(problem="kills the process that decodes it; its bytes are kept", is_poison=True),
    False: Inspection(
        problem="kills the process that reads it; its bytes are not in the store",
        readable=False,
        is_poison=True,
    ),
}


def _inspect_tensors(head: bytes, opened: OpenFile | None, file: SourceFile, named: TensorFile) -> Inspection:
    """Inspect a file that begins with `head`; all of it if it is not opened."""
    try:
        if named.container is Container.NPY and not _is_overflow(named):
            length = npy.header_length(head[: npy.PREAMBLE_NBYTES])
            if length <= _NPY_HEADER_BYTES:
                header = npy.parse_header(head, file_size=file.size, length=length)
                sample = sample_digest(head[length : length + SAMPLE_BYTES])
                return Inspection((header,), (sample,))
        read = _reader(opened, head, file.size)
        headers, envelope, file_record = (
            pt.read_parts(read, file.size)
            if named.container is Container.PT
            else FileParts(_headers(named, read, file.size))
        )
        samples = tuple([_sample(header, read) for header in headers])
        record = None
        if headers and _is_overflow(named):
            payload = read(headers[0].offset, min(headers[0].nbytes, overflow.MAX_RECORD_BYTES))
            record = overflow.parse(payload)
    except Truncated as exc:
        # A read-only file was closed by its writer: what is missing was lost (the disk was full).
        return Inspection(problem=exc.message, may_grow=file.writable)
    except HoldsNoTensor as exc:
        if exc.record:
            return Inspection(record=exc.record)
        return Inspection(note=exc.message) if named.any_argument else Inspection(problem=exc.message)
    except UnreadableTensor as exc:
        return Inspection(problem=exc.message)
    digest = None if envelope is None else envelope_digest(envelope)
    return Inspection(headers, samples, envelope_digest=digest, record=file_record, overflow=record)


def _sample(header: TensorHeader, read: ReadAt) -> int | None:
    if header.view is not None or header.is_part:
        return None
    return sample_digest(read(header.offset, min(header.nbytes, SAMPLE_BYTES)))


def _is_overflow(named: TensorFile) -> bool:
    return named.name is not None and named.name.op_type == OVERFLOW_OP_TYPE


def _reader(opened: OpenFile | None, head: bytes, file_size: int) -> ReadAt:
    """Return a function that reads parts of a file that begins with `head`; its end is read only once."""
    if opened is None or len(head) == file_size:
        return lambda offset, nbytes: head[offset : offset + nbytes]
    tail_begin = max(file_size - HEAD_BYTES, len(head))
    tail = b""

    def read(offset: int, nbytes: int) -> bytes:
        nonlocal tail
        if offset + nbytes <= len(head):
            return head[offset : offset + nbytes]
        if offset < tail_begin:
            return opened.read_at(offset, nbytes)
        # A zip has its directory there.
        tail = tail or opened.read_at(tail_begin, HEAD_BYTES)
        return tail[offset - tail_begin : offset - tail_begin + nbytes]

    return read


def _may_be_overflow_json(file: SourceFile) -> bool:
    name = file.path.rpartition("/")[2]
    is_named_so = name.startswith(f"{OVERFLOW_OP_TYPE}.") and name.endswith(".json")
    return is_named_so and file.size <= overflow.MAX_RECORD_BYTES


def _headers(named: TensorFile, read: ReadAt, file_size: int) -> tuple[TensorHeader, ...]:
    if named.container is Container.RAW:
        return (npy.raw_header(named.dtype, named.shape, file_size),)
    if named.container is Container.DISTCP:
        return distcp.read_headers(read, file_size, named.chunks)
    if named.container is Container.DUMP_DATA:
        from workers.dump.formats import (
            dump_data,  # deferred: protobuf takes 0.03 s, and most dumps need none
        )

        return dump_data.read_headers(read, file_size)
    return _FORMATS[named.container](read, file_size)


_FORMATS: Mapping[Container, Callable[[ReadAt, int], tuple[TensorHeader, ...]]] = {
    Container.NPY: npy.read_headers,
    Container.SAFETENSORS: safetensors.read_headers,
    Container.NPZ: npy.read_archive_headers,
    Container.TENSOR_PROTO: tensor_proto.read_headers,
}
