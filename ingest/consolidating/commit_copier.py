"""Copies commits into the cubes, for readers who need those of many steps: an object for each step.

The copies hold nothing of their own. A reader takes one if no change of the commit is announced. So whenever
a change is announced or found, the copy is written again, or emptied, before its announcement is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import numpy.typing as npt

from ingest.consolidating.cube_writer import CubeWriter
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store.commit import Commit
from workers.store.consolidated.cubes import GROUP
from workers.store.consolidated.nd_arrays import ArrayLayout

#: Objects that are held in memory at once; each has the commits of up to 256 ranks.
_AT_ONCE = 8

#: Place of a step, and number of a chunk of ranks.
_Index: TypeAlias = tuple[int, int]


def copy_commits(
    writer: CubeWriter,
    keys: Iterable[StepKey],
    commits: Mapping[StepKey, Commit],
    appended: Collection[int] = (),
) -> None:
    """Make the copies of these commits what the commits are; empty those of commits that cannot be read.

    Steps that the cubes do not have are passed over, and so are all if the cubes are of a version without
    copies.

    Args:
        writer: of the cubes.
        keys: whose commits were read, or are known to be gone.
        commits: what was read.
        appended: the steps that are new in the cubes. What else stands at their places is of no use.

    Raises:
        StoreError: the store refused.
    """
    layout = writer.layouts.commits
    if layout is None:
        return
    texts = _by_object(writer, keys, commits)
    new_places = {writer.place(step) for step in appended}
    indexes = list(texts)
    for start in range(0, len(indexes), _AT_ONCE):
        names = {index: f"{GROUP}/{layout.key(index)}" for index in indexes[start : start + _AT_ONCE]}
        held = writer.objects.get_many([name for index, name in names.items() if index[0] not in new_places])
        written = {}
        for index, name in names.items():
            copies = _decoded(layout, held.get(name), name)
            before = copies.copy()
            for within, text in texts[index].items():
                copies[0, within] = text
            if name not in held or (copies != before).any():
                written[name] = layout.encode(copies)
        writer.objects.put_many(written)


def _by_object(
    writer: CubeWriter, keys: Iterable[StepKey], commits: Mapping[StepKey, Commit]
) -> dict[_Index, dict[int, str]]:
    """Return the copies by the object that they are in, and by their place along its ranks."""
    places = {rank: place for place, rank in enumerate(writer.ranks)}
    texts: dict[_Index, dict[int, str]] = {}
    for key in keys:
        if key.step is None or not writer.has(key.step) or key.rank not in places:
            continue
        chunk, within = divmod(places[key.rank], writer.state.grid.ranks)
        committed = commits.get(key)
        text = "" if committed is None else committed.data.decode()
        texts.setdefault((writer.place(key.step), chunk), {})[within] = text
    return texts


def _decoded(layout: ArrayLayout, data: bytes | None, name: str) -> npt.NDArray[Any]:
    """Return an object as an array that can be changed; an empty one if it is damaged."""
    try:
        return layout.decode(data, name).copy()
    except DamagedStore:
        return layout.full()
