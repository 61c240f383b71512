"""Tombstones: which steps were removed on purpose, so that nobody takes them for steps that are missing.

    rank_{r}/removed/zarr.json                                a group without members
    rank_{r}/removed/{step}.{milliseconds}.{fingerprint}      one for each removed generation

The middle of the name is when the removed generation was committed. So one listing says everything that a
watcher needs. What is in them is for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from workers.model import SourceFile
from workers.store import metadata
from workers.store.objects import ObjectStore

_NAME = re.compile(r"([0-9]{1,18})\.([0-9]{1,15})\.([0-9A-Za-z_-]{1,64})")


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A step that was removed."""

    rank: int
    step: int
    fingerprint: str
    committed_ms: int
    """When the removed generation was committed, in milliseconds since the epoch."""

    @property
    def path(self) -> str:
        """Where it is, relative to the store."""
        return f"{_directory(self.rank)}/{self.step}.{self.committed_ms}.{self.fingerprint}"

    def covers(self, fingerprint: str, files: Iterable[SourceFile] = ()) -> bool:
        """Whether a listing is of what was removed, or of what is left of that.

        Args:
            fingerprint: of the listing.
            files: of the listing; none for not known.
        """
        if fingerprint == self.fingerprint:
            return True
        newest = max((file.mtime_ns for file in files), default=None)
        return newest is not None and newest <= self.committed_ms * 1_000_000


def write(objects: ObjectStore, one: Tombstone, facts: Mapping[str, Any]) -> None:
    """Write a tombstone, with facts about the removal for people. Safe to call again."""
    objects.put(one.path, json.dumps({**asdict(one), **facts}).encode())


def ensure_group(objects: ObjectStore, rank: int) -> None:
    """Make the group that tombstones of a rank are in."""
    # The members of a group with such metadata are not listed: tombstones are no part of the hierarchy.
    no_members = {"kind": "inline", "must_understand": False, "metadata": {}}
    group = {**metadata.group(), "consolidated_metadata": no_members}
    objects.put(f"{_directory(rank)}/zarr.json", metadata.encode(group))


def read(objects: ObjectStore, rank: int) -> dict[int, list[Tombstone]]:
    """Return the tombstones of a rank by step."""
    found: dict[int, list[Tombstone]] = {}
    for name in objects.children(_directory(rank)):
        if match := _NAME.fullmatch(name):
            step, committed_ms, fingerprint = match.groups()
            found.setdefault(int(step), []).append(Tombstone(rank, int(step), fingerprint, int(committed_ms)))
    return found


def _directory(rank: int) -> str:
    return f"rank_{rank}/removed"
