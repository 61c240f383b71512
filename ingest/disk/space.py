"""How much room a file system has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """What a file system holds, and what may still be written to it without privileges."""

    free_nbytes: int
    nbytes: int
    free_inodes: int
    inodes: int
    """0 where the file system does not count them."""


def space_at(path: Path) -> DiskSpace | None:
    """Return the room of the file system that holds `path`; None when `path` is not there."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(
        free_nbytes=found.f_bavail * found.f_frsize,
        nbytes=found.f_blocks * found.f_frsize,
        free_inodes=found.f_favail,
        inodes=found.f_files,
    )
