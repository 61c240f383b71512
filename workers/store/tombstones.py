"""Tombstones: which steps were removed on purpose, so that nobody takes them for steps that are missing.

    rank_{r}/removed/zarr.json                                a group without members
    rank_{r}/removed/{step}.{milliseconds}.{fingerprint}      one for each removed generation

The middle of the name is when the removed generation was committed. So one listing has everything that a
watcher needs. What is in them is for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from workers.model import SourceFile
from workers.store import metadata
from workers.store.objects import ObjectStore
from workers.store.packed.pool import without_pool

_NAME = re.compile(r"([0-9]{1,18})\.([0-9]{1,15})\.([0-9A-Za-z_-]{1,64})")


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A step that was removed."""

    rank: int
    step: int
    fingerprint: str
    committed_ms: int
    """When the removed generation was committed, in milliseconds since the epoch."""

    @classmethod
    def from_name(cls, rank: int, name: str) -> Tombstone | None:
        """Return the tombstone of a rank that has this name; None if it is not the name of one."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        step, committed_ms, fingerprint = match.groups()
        return cls(rank, int(step), fingerprint, int(committed_ms))

    @property
    def path(self) -> str:
        """Where it is, relative to the store."""
        return f"{_directory(self.rank)}/{self.step}.{self.committed_ms}.{self.fingerprint}"

    def covers(self, fingerprint: str, files: Iterable[SourceFile] = ()) -> bool:
        """Return whether a listing shows the removed files, or some of them.

        Args:
            fingerprint: of the listing.
            files: of the listing; empty if they are not known.
        """
        if without_pool(fingerprint) == without_pool(self.fingerprint):
            return True
        newest = max((file.mtime_ns for file in files), default=None)
        return newest is not None and newest <= self.committed_ms * 1_000_000


def write(objects: ObjectStore, tombstone: Tombstone, *, removed_at: str, why: str) -> None:
    """Write a tombstone; `removed_at` (ISO 8601) and `why` are for people. Safe to call again."""
    content = {**asdict(tombstone), "removed_at": removed_at, "why": why}
    objects.put(tombstone.path, json.dumps(content).encode())


def ensure_group(objects: ObjectStore, rank: int) -> None:
    """Make the group that holds the tombstones of a rank."""
    # Readers do not list the members of a group with such metadata: tombstones are not part of the hierarchy.
    no_members = {"kind": "inline", "must_understand": False, "metadata": {}}
    group = {**metadata.group(), "consolidated_metadata": no_members}
    objects.put(f"{_directory(rank)}/zarr.json", metadata.encode(group))


def read(objects: ObjectStore, rank: int) -> dict[int, list[Tombstone]]:
    """Return the tombstones of a rank by step."""
    tombstones: dict[int, list[Tombstone]] = {}
    for name in objects.children(_directory(rank)):
        tombstone = Tombstone.from_name(rank, name)
        if tombstone is not None:
            tombstones.setdefault(tombstone.step, []).append(tombstone)
    return tombstones


def _directory(rank: int) -> str:
    return f"rank_{rank}/removed"
