"""The files of `torch.distributed.checkpoint`: archives of `torch.save`, one behind the other.

    __{rank}_{n}.distcp   an archive for each tensor, or the part of it that the rank has, and for each value
    .metadata             a pickle: what each archive holds, and where it begins

(torch 2.15, `torch/distributed/checkpoint/filesystem.py` and `metadata.py`.) Archives are found from the end
of the file: each tells its length at its end. So no figure of `.metadata` is believed; it gives names, the
global shape of each tensor, and where the part lies in it. Nothing in it is executed: see
`workers.dump.formats.pickle_machine`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from workers.dump.formats.header import (
    MAX_NDIM,
    HoldsNoTensor,
    PlacedTensor,
    ReadAt,
    TensorHeader,
    Truncated,
    assemble,
    read_exactly,
)
from workers.dump.formats.pickle_machine import Machine, OpaqueKey, member_of
from workers.dump.formats.pt import place_tensors
from workers.dump.formats.pt_tree import FUNCTIONS
from workers.dump.formats.zip_archive import END, LOCATOR64
from workers.errors import UnreadableTensor

#: The largest `.metadata` that is read: enough for some 100,000 parts.
MAX_METADATA_NBYTES = 32 * 1024 * 1024
#: The most archives of a file.
_MAX_ARCHIVES = 100_000
_MAX_NAME = 1000
_END64_NBYTES = 56
#: End record, and before it the two records of zip64, if there are any.
_ENDS_NBYTES = _END64_NBYTES + LOCATOR64.size + END.size
_Value: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Chunk:
    """What `.metadata` says about one archive."""

    name: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """For a tensor its global shape, and where this part begins in it."""


def read_headers(
    read: ReadAt, file_size: int, chunks: Mapping[int, Chunk] | None = None
) -> tuple[TensorHeader, ...]:
    """Return the parts of a `.distcp` file; see `assemble`. Reads no storage.

    Args:
        read: reads parts of the file.
        file_size: bytes of the file.
        chunks: what is known of its archives, by where they begin. An archive of which nothing is known has
            that place as its name.

    Raises:
        Truncated: the file does not end with an archive.
        HoldsNoTensor: it is whole, and holds other values only.
        UnreadableTensor: it is damaged.
    """
    placed: list[PlacedTensor] = []
    attributes: dict[str, Any] = {}
    known = chunks or {}
    for begin, end in reversed(list(_archives(read, file_size))):
        chunk = known.get(begin) or Chunk(str(begin))
        try:
            tensors, values = place_tensors(partial(_read_part, read, begin, end), end - begin)
        except HoldsNoTensor as exc:
            tensors, values = [], json.loads(exc.record or "{}").get("file", {})
        except Truncated as exc:
            raise UnreadableTensor(f"its archive at byte {begin} {exc.message}") from exc
        placed += [
            replace(
                tensor,
                offset=begin + tensor.offset,
                path=(chunk.name, *tensor.path),
                attributes={**tensor.attributes, **chunk.attributes},
            )
            for tensor in tensors
        ]
        if values:
            attributes[chunk.name] = values.get("", values)
    if not placed:
        raise HoldsNoTensor("holds values, and no tensor", record=json.dumps({"file": attributes}))
    return assemble(placed, attributes, read, file_size)


def _read_part(read: ReadAt, begin: int, end: int, offset: int, nbytes: int) -> bytes:
    return read(begin + offset, max(min(nbytes, end - begin - offset), 0))


def _archives(read: ReadAt, file_size: int) -> Iterator[tuple[int, int]]:
    """Yield where each archive begins and ends, the last one first. They make up the file."""
    end = file_size
    for _ in range(_MAX_ARCHIVES):
        begin = _begin_of(read, end)
        if begin is None or not 0 <= begin < end:
            if end == file_size:
                raise Truncated(f"has {file_size} bytes, and does not end with an archive of torch.save")
            raise UnreadableTensor(f"has no archive of torch.save that ends at byte {end}")
        yield begin, end
        end = begin
        if end == 0:
            return
    raise UnreadableTensor(f"has more than {_MAX_ARCHIVES} archives")


def _begin_of(read: ReadAt, end: int) -> int | None:
    """Return where the zip archive begins that ends at a byte; None if none does."""
    if end < END.size:
        return None
    ends = read_exactly(read, max(end - _ENDS_NBYTES, 0), min(_ENDS_NBYTES, end))
    magic, _, _, _, _, nbytes, offset, comment_n = END.unpack(ends[-END.size :])
    if magic != b"PK\x05\x06" or comment_n:
        return None
    if len(ends) == _ENDS_NBYTES and ends.startswith(b"PK\x06\x06"):
        magic, _, end64, _ = LOCATOR64.unpack_from(ends, _END64_NBYTES)
        if magic == b"PK\x06\x07":
            return int(end - _ENDS_NBYTES - end64)
    return int(end - END.size - nbytes - offset)


def read_metadata(data: bytes) -> dict[str, dict[int, Chunk]]:
    """Read a `.metadata` file: the archives of each file, by path and by where they begin.

    Takes time and memory in proportion to the size of `data`.

    Raises:
        UnreadableTensor: it is damaged, or of another form.
    """
    metadata = Machine(data, FUNCTIONS).run()
    entries, places = member_of(metadata, "state_dict_metadata"), member_of(metadata, "storage_data")
    if not isinstance(entries, dict) or not isinstance(places, dict):
        raise UnreadableTensor("is not the metadata of torch.distributed.checkpoint")
    files: dict[str, dict[int, Chunk]] = {}
    for index, place in places.items():
        key = index.value if isinstance(index, OpaqueKey) else None
        match member_of(key, "fqn"), member_of(place, "relative_path"), member_of(place, "offset"):
            case str(name), str(path), int(begin) if 0 <= begin < 2**62:
                size, offsets = (
                    _lengths(member_of(*part)) for part in ((entries.get(name), "size"), (key, "offset"))
                )
                attributes = (
                    {"global_shape": size, "offsets": offsets or [0] * len(size)} if size is not None else {}
                )
                files.setdefault(path, {})[begin] = Chunk(name[:_MAX_NAME], attributes)
    return files


def _lengths(value: _Value) -> list[int] | None:
    if not isinstance(value, tuple | list) or len(value) > MAX_NDIM:
        return None
    return list(value) if all(type(n) is int and abs(n) < 2**63 for n in value) else None
