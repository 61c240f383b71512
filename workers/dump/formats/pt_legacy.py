"""Files that `torch.save` wrote before torch 1.6, and writes with `_use_new_zipfile_serialization=False`.

Five pickles one behind the other: a magic number, the protocol 1001, what the machine was like, the value,
and the keys of its storages; then for each key the number of elements (8 bytes, little-endian) and the
elements (torch, `torch/serialization.py`, `_legacy_save`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from workers.dump.formats.header import ReadAt, Truncated, read_exactly
from workers.dump.formats.pickle_machine import Function, Machine, Storage
from workers.dump.formats.pt_elements import storage_itemsize
from workers.dump.formats.pt_pickle import FUNCTIONS
from workers.dump.formats.zip_archive import LOCAL_MAGIC
from workers.errors import UnreadableTensor

#: A pickle of protocol 2 that begins with torch's magic number.
LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9"
_PROTOCOL = 1001
#: The pickles are at the beginning of the file; more than this is not read.
_MAX_PICKLES_NBYTES = 32 * 1024 * 1024


class LegacyFile(NamedTuple):
    """What is in a file."""

    value: Any
    nbytes: int
    """The length of its pickles."""
    big_endian: bool
    place: Callable[[str], tuple[int, int]]
    """Returns offset and length of a storage in the file, by its key."""


def is_legacy(read: ReadAt, file_size: int) -> bool:
    """Return whether the file is in the format before torch 1.6; raise unless it is in one of the two."""
    head = read(0, min(len(LEGACY_MAGIC), file_size))
    if head.startswith(LEGACY_MAGIC):
        return True
    if not head.startswith(LOCAL_MAGIC[: len(head)]):
        raise UnreadableTensor(f"is not a file of torch.save: it begins with {head[:4]!r}")
    if len(head) < len(LOCAL_MAGIC):
        raise Truncated(f"has {file_size} bytes, fewer than the header of a zip")
    return False


class _StoragesSeen:
    """The storages that a pickle refers to, by key. The pickle alone tells their types."""

    def __init__(self, code: bytes) -> None:
        self.storages: dict[str, Storage] = {}
        self.end = 0
        self._code = code

    def run(self, functions: dict[str, Function] | None = None) -> Any:
        machine = Machine(self._code, functions or {}, self.end)
        value = machine.run()
        self.storages.update({storage.key: storage for storage in machine.storages})
        self.end = machine.end
        return value


def read_legacy(read: ReadAt, file_size: int) -> LegacyFile:
    """Return what is in a file.

    Raises:
        Truncated: the file ends before its last storage does.
        UnreadableTensor: it is damaged.
    """
    pickles = _StoragesSeen(read_exactly(read, 0, min(file_size, _MAX_PICKLES_NBYTES)))
    pickles.run()
    protocol, machine = pickles.run(), pickles.run()
    if protocol != _PROTOCOL or not isinstance(machine, dict):
        raise UnreadableTensor("is not in a format of torch.save that is known")
    value = pickles.run(FUNCTIONS)
    keys = pickles.run()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise UnreadableTensor("its list of storages is damaged")
    places = _places(read, file_size, pickles, keys)

    def place(key: str) -> tuple[int, int]:
        if key not in places:
            raise UnreadableTensor(f"its storage {key:.40} is not in the file")
        return places[key]

    return LegacyFile(value, pickles.end, machine.get("little_endian") is False, place)


def _places(
    read: ReadAt, file_size: int, pickles: _StoragesSeen, keys: list[str]
) -> dict[str, tuple[int, int]]:
    places: dict[str, tuple[int, int]] = {}
    at = pickles.end
    for key in keys:
        storage = pickles.storages.get(key)
        if storage is None or key in places:
            raise UnreadableTensor(f"its storage {key:.40} is not the one of a tensor")
        count = int.from_bytes(read_exactly(read, at, 8), "little")
        nbytes = count * storage_itemsize(storage.kind)
        if at + 8 + nbytes > file_size:
            raise Truncated(f"has {file_size} bytes, and its storage {key:.40} ends at {at + 8 + nbytes}")
        places[key] = (at + 8, nbytes)
        at += 8 + nbytes
    return places
