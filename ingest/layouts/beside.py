"""What lies beside a dump that was found below the directory that a user named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ingest.layouts.declared import CONTAINERS
from ingest.layouts.places import holds_tensors
from workers.host.paths import absolute

_SUFFIXES = frozenset(CONTAINERS)


def tensors_beside(directory: Path, root: Path) -> tuple[Path, ...]:
    """Return directories that hold tensor files outside of the dump and of stores, in order.

    Looks at the first entries of each directory beside those from `directory` down to the dump.

    Args:
        directory: what the user named.
        root: the dump that was found there, perhaps some levels below.
    """
    directory = absolute(directory)
    if root == directory or not root.is_relative_to(directory):
        return ()
    way_down = [root, *(above for above in root.parents if above.is_relative_to(directory))]
    beside = (child for above in way_down[1:] for child in _directories(above) if child not in way_down)
    return tuple(
        sorted(
            child
            for child in beside
            if not (child / "zarr.json").exists() and holds_tensors(child, _SUFFIXES)
        )
    )


def _directories(above: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(above) as entries:
        yield from [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
