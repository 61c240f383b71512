"""From a directory that a user names to the dumps in it."""

from __future__ import annotations

import os
from pathlib import Path

from ingest.layouts.base import Dump
from ingest.layouts.mindspore import MindSporeDump, rank_of
from workers.errors import AccessDenied, DumpError, UsageError

#: How many levels below the named directory a dump may begin.
MAX_DEPTH = 3


def find_dump(directory: Path) -> Dump:
    """Return the dump at, or a few levels below, a directory.

    The directory may also be one `rank_{r}` directory: then only that rank is taken.

    Raises:
        UsageError: there is no such directory, no known layout in it, or more than one dump.
        AccessDenied: it may not be read.
    """
    directory = directory.expanduser().absolute()
    if not directory.is_dir():
        what = "is no directory" if directory.exists() else "does not exist"
        raise UsageError(f"{directory} {what}", hint="Name the directory that holds rank_0, rank_1, ...")
    rank = rank_of(directory.name)
    if rank is not None:
        return MindSporeDump(directory.parent, frozenset([rank]))
    denied: list[AccessDenied] = []
    found = _find(directory, MAX_DEPTH, denied)
    if not found and denied:
        raise denied[0]
    if not found:
        raise UsageError(
            f"{directory}: no dump of a known layout",
            hint="A MindSpore dump has directories rank_{r}/{net}/{graph}/{iteration}. If the job has not "
            "begun to dump yet, use `dump-ingest watch`, which waits for it.",
        )
    if len(found) > 1:
        names = ", ".join(str(path) for path in found[:4])
        raise UsageError(
            f"{directory} holds {len(found)} dumps: {names}{', ...' if len(found) > 4 else ''}",
            hint="Their ranks and steps would collide: ingest each into a store of its own.",
        )
    if (found[0] / "zarr.json").exists():
        raise UsageError(f"{found[0]} is a store, no dump", hint="Name the dump first, then --store.")
    return MindSporeDump(found[0])


def _find(directory: Path, depth: int, denied: list[AccessDenied]) -> list[Path]:
    """Return the dumps at or below a directory; what may not be read is passed over and noted in `denied`."""
    try:
        with os.scandir(directory) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except PermissionError as exc:
        denied.append(AccessDenied(f"{directory}: permission denied"))
        denied[-1].__cause__ = exc
        return []
    except OSError as exc:
        raise DumpError(f"{directory} cannot be listed: {exc.strerror}") from exc
    if any(rank_of(name) is not None for name in below):
        return [directory]
    if depth == 0:
        return []
    return [path for name in below for path in _find(directory / name, depth - 1, denied)]
