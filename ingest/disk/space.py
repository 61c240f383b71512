"""How much space a file system has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The size of a file system, and what may still be written to it without privileges."""

    free_nbytes: int
    nbytes: int
    free_inodes: int
    inodes: int
    """0 if the file system does not count them."""


def space_at(path: Path) -> DiskSpace | None:
    """Return the space of the file system that holds `path`; None if `path` does not exist."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(
        free_nbytes=status.f_bavail * status.f_frsize,
        nbytes=status.f_blocks * status.f_frsize,
        free_inodes=status.f_favail,
        inodes=status.f_files,
    )
