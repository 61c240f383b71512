"""From a directory that a user names to the dump in it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ingest.layouts.base import Dump, Layout
from ingest.layouts.cann import Cann
from ingest.layouts.mindspore import MindSpore
from ingest.layouts.mindspore_async import MindSporeAsync
from ingest.layouts.mindspore_raw import MindSporeRaw
from ingest.layouts.msprobe import MsProbe
from ingest.layouts.msprobe_native import MsProbeNative
from ingest.layouts.pattern import Pattern
from ingest.layouts.torchair import TorchAir
from ingest.layouts.tree import DumpTree
from workers.errors import AccessDenied, DumpError, UsageError

#: Every layout there is. Where a directory fits two, the first counts.
LAYOUTS: tuple[Layout, ...] = (
    MindSpore(),
    MsProbeNative(),
    Cann(),
    TorchAir(),
    MsProbe(),
    MindSporeAsync(),
    MindSporeRaw(),
)
#: How many levels below the named directory a dump may begin.
MAX_DEPTH = 3
#: How many levels above it: a user may name one rank, or one step, of a dump.
_MAX_ABOVE = 6
_TIME_DIGITS = 14


def find_dump(directory: Path, *, rank_map: Mapping[int, int] | None = None) -> Dump:
    """Return the dump at, or a few levels below, a directory.

    The directory may also be one within a dump, such as that of one rank: then only that part is taken.

    Args:
        directory: what the user names.
        rank_map: ranks of device ids, where the user gives them.

    Raises:
        UsageError: there is no such directory, no known layout in it, or more than one dump.
        AccessDenied: it may not be read.
    """
    directory = directory.expanduser().absolute()
    try:
        is_directory, exists = directory.is_dir(), directory.exists()
    except PermissionError as exc:  # above it
        raise AccessDenied(f"{directory}: permission denied") from exc
    if not is_directory:
        what = "is no directory" if exists else "does not exist"
        raise UsageError(f"{directory} {what}", hint="Name the directory that holds rank_0, rank_1, ...")
    patterns = [pattern for layout in LAYOUTS for pattern in layout.patterns]
    denied: list[AccessDenied] = []
    tree = _Names()
    found = _find(directory, patterns, MAX_DEPTH, tree, denied)
    if not found and denied:
        raise denied[0]
    if found in ([], [directory]) and (above := _above(directory, patterns, tree)):
        return DumpTree(above, LAYOUTS, below=str(directory.relative_to(above)), rank_map=rank_map)
    if not found:
        raise UsageError(
            f"{directory}: no dump of a known layout",
            hint="A MindSpore dump has directories rank_{r}/{net}/{graph}/{iteration}; docs/formats.md has "
            "every layout. If the job has not begun to dump yet, `dump-ingest watch` waits for it.",
        )
    if len(found) > 1:
        names = ", ".join(str(path) for path in found[:4])
        raise UsageError(
            f"{directory} holds {len(found)} dumps: {names}{', ...' if len(found) > 4 else ''}",
            hint="Their ranks and steps would collide: ingest each into a store of its own.",
        )
    if (found[0] / "zarr.json").exists():
        raise UsageError(f"{found[0]} is a store, no dump", hint="Name the dump first, then --store.")
    return DumpTree(found[0], LAYOUTS, rank_map=rank_map)


def _find(
    directory: Path, patterns: Sequence[Pattern], depth: int, tree: _Names, denied: list[AccessDenied]
) -> list[Path]:
    """Return the dumps at or below a directory; what may not be read is passed over and noted in `denied`."""
    try:
        below = tree.below(directory)
    except PermissionError as exc:
        denied.append(AccessDenied(f"{directory}: permission denied"))
        denied[-1].__cause__ = exc
        return []
    except OSError as exc:
        raise DumpError(f"{directory} cannot be listed: {exc.strerror}") from exc
    if any(_proves(pattern, 0, directory, tree) for pattern in patterns):
        return [directory]
    if depth == 0:
        return []
    return [path for name in below for path in _find(directory / name, patterns, depth - 1, tree, denied)]


def _proves(pattern: Pattern, level: int, directory: Path, tree: _Names) -> bool:
    """Whether below a directory there is what shows that it is a dump by this pattern."""
    if level == pattern.proof:
        return True
    try:
        names = tree.below(directory)
    except OSError:
        return False
    return any(
        pattern.match(level, name) is not None and _proves(pattern, level + 1, directory / name, tree)
        for name in names
    )


def _above(directory: Path, patterns: Sequence[Pattern], tree: _Names) -> Path | None:
    """Return the directory above, of which this one is a part; the highest one.

    If it is a dump by itself, too, the one above must tell more of the same tree: the rank of a process, say,
    of which the graph engine knows only the device.
    """
    proven = [pattern.text for pattern in patterns if _proves(pattern, 0, directory, tree)]
    found: Path | None = None
    for height, above in enumerate(directory.parents[:_MAX_ABOVE], 1):
        names = directory.relative_to(above).parts
        # A name such as `3` fits a step by chance.
        if names[0].isdecimal() and len(names[0]) != _TIME_DIGITS and (proven or found):
            continue
        for pattern in patterns:
            fits = len(pattern.levels) >= height and all(
                pattern.match(level, name) is not None for level, name in enumerate(names)
            )
            is_dump = fits and (height >= pattern.proof or _proves(pattern, height, directory, tree))
            if is_dump and (not proven or _rest(pattern, height) in proven):
                found = above
    return found


def _rest(pattern: Pattern, height: int) -> str:
    """Return the text of a pattern without its first levels."""
    return "/".join(pattern.text.split("/")[height:])


class _Names:
    """The names of the directories below a directory, each listed once for all patterns."""

    def __init__(self) -> None:
        self._below: dict[Path, list[str]] = {}

    def below(self, directory: Path) -> list[str]:
        """Return the names, sorted.

        Raises:
            OSError: it cannot be listed.
        """
        if directory not in self._below:
            with os.scandir(directory) as entries:
                self._below[directory] = sorted(
                    entry.name for entry in entries if entry.is_dir(follow_symlinks=False)
                )
        return self._below[directory]
