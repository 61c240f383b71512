"""Commits of many steps from their copies in the consolidated view: a request for each step, not each commit.

A copy stands for a commit if no change of the commit is announced. Who changes a commit announces it before,
and the announcement stands until the copy was written again from what was read afterwards. So announcements
are listed first: a commit whose change is announced later has changed since the question was asked.

No listing of an object store shows that a commit is still what was copied: it would name all other objects of
each step, too. See docs/design/007-consolidated-view.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ingest.reader.cubes.cube_reader import CubeReader, read_cubes
from workers.errors import DamagedStore, StoreDenied, StoreFormatError
from workers.model import StepKey
from workers.store import commit
from workers.store.announcements import read_announcements
from workers.store.commit import Commit
from workers.store.consolidated.cubes import GROUP
from workers.store.objects import ObjectStore

#: Of fewer commits than this for each step, and in all, the commits themselves are read.
_LEAST_OF_STEP, _LEAST = 4, 32
#: Objects that are requested at once; each has the commits of up to 256 ranks.
_AT_ONCE = 16


def read_copies(objects: ObjectStore, keys: Sequence[StepKey]) -> dict[StepKey, Commit]:
    """Read the copies of these commits that are up to date; none if they are too few for a gain.

    Raises:
        StoreError: the store refused.
    """
    steps = {key.step for key in keys}
    return {} if len(keys) < max(_LEAST, _LEAST_OF_STEP * len(steps)) else copies_of(objects, keys)


def copies_of(objects: ObjectStore, keys: Sequence[StepKey]) -> dict[StepKey, Commit]:
    """Return those of these commits whose copies are up to date, however few they are.

    Raises:
        StoreError: the store refused.
    """
    try:
        announced = read_announcements(objects)
        cubes = read_cubes(objects)
        if cubes is None:
            return {}
        texts = held_copies(cubes, {*keys} - announced.keys())
        parsed = ((key, _parsed(text, key)) for key, text in texts)
        return {key: committed for key, committed in parsed if committed is not None}
    except (DamagedStore, StoreDenied):
        return {}  # the commits themselves may be readable


def outdated_copies(cubes: CubeReader, keys: Collection[StepKey]) -> list[StepKey]:
    """Return the steps of which the view has another copy than the commit, although no change is announced.

    Commits that are damaged or gone are passed over: the copy is not at fault.

    A change that is announced and copied meanwhile looks so, too: ask again.

    Raises:
        DamagedStore: copies are damaged.
    """
    announced = read_announcements(cubes.objects)
    texts = {key: text for key, text in held_copies(cubes, keys) if key not in announced}
    commits, _ = commit.read_many(cubes.objects, list(texts))
    return [key for key, committed in commits.items() if committed.data != texts[key].encode()]


def held_copies(cubes: CubeReader, keys: Collection[StepKey]) -> Iterator[tuple[StepKey, str]]:
    """Yield the copies of these commits that the view has, up to date or not.

    Raises:
        DamagedStore: they are damaged.
    """
    layout = cubes.layouts.commits
    parts = _parts_of_steps(cubes, {key.step for key in keys})
    for first in range(0, len(parts), _AT_ONCE):
        batch = parts[first : first + _AT_ONCE]
        chunks = cubes.objects.get_many([name for name, _, _ in batch])
        for name, step, members in batch:
            # One that is missing was never written: empty.
            texts = layout.decode(chunks.get(name), name)[0].tolist()
            for rank, text in zip(members, texts, strict=False):
                if text and (key := StepKey(rank, step)) in keys:
                    yield key, text


def _parts_of_steps(cubes: CubeReader, steps: Collection[int | None]) -> list[tuple[str, int, list[int]]]:
    """Return the names of the chunks that hold copies of these steps, each with its step and its ranks."""
    width, ranks = cubes.state.grid.ranks, cubes.ranks.tolist()
    return [
        (f"{GROUP}/{cubes.layouts.commits.key((place, start // width))}", step, ranks[start : start + width])
        for place, step in enumerate(cubes.steps.tolist())
        if step in steps
        for start in range(0, len(ranks), width)
    ]


def _parsed(text: str, key: StepKey) -> Commit | None:
    """Return a copied commit; None if it is not one of this step, or of a later version."""
    try:
        return commit.parse(text.encode(), key)
    except (DamagedStore, StoreFormatError):
        return None
