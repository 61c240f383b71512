"""Announcements of changed commits, for the cubes and the copies of commits that must follow the change.

    consolidated/changed/{rank}.{step}.{fingerprint}     another generation takes its place
    consolidated/changed/{rank}.{step}.removed           the commit goes
    consolidated/changed/{rank}.{step}.begun-{change}    the generation stays, and its `zarr.json` changes
    consolidated/changed/{rank}.{step}.done-{change}     that has happened

The objects are empty, and stand until the consolidator has read the commit afterwards. That another
generation was committed, or the commit removed, shows in what is there now. That the same generation was
committed again does not: so that is announced twice, before and after. A writer that is killed in between
leaves the first one alone, and everybody reads the commit. After its grace period, `gc` announces the end in
place of the writer.

Announced is each change of a commit that exists. The first commit of a step is found by listing.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from workers.model import StepKey
from workers.store.objects import ObjectStore

#: Where the announcements are.
CHANGED = "consolidated/changed"
#: Stands there in the place of a generation if a commit was removed.
REMOVED = "removed"
#: Before the name of a change within a generation.
BEGUN, DONE = "begun-", "done-"
_BEGUN_PATH = re.compile(rf"{CHANGED}/[0-9]+\.[0-9]+\.{BEGUN}[0-9a-f]{{32}}")


def path_of(key: StepKey, word: str) -> str:
    """Return the object that announces a change: a generation, `REMOVED`, `BEGUN` or `DONE` with a name."""
    return f"{CHANGED}/{key.rank}.{key.step}.{word}"


def announce(objects: ObjectStore, key: StepKey, word: str) -> None:
    """Announce a change of a commit; see `path_of`. Nobody has run files from elsewhere."""
    if key.step is not None:
        objects.put(path_of(key, word), b"")


@contextmanager
def changing(objects: ObjectStore, key: StepKey) -> Iterator[None]:
    """Announce that a commit changes while the block runs, and may have the same generation afterwards.

    If the block raises an error, nobody knows whether it has changed: the announcement stands.
    """
    change = uuid.uuid4().hex
    announce(objects, key, f"{BEGUN}{change}")
    yield
    announce(objects, key, f"{DONE}{change}")


def has_begun(path: str) -> bool:
    """Return whether an object announces that a change within a generation has begun."""
    return _BEGUN_PATH.fullmatch(path) is not None


def end_of(begun: str) -> str:
    """Return the object that announces the end of a change, from the one that announces its beginning."""
    return begun.replace(f".{BEGUN}", f".{DONE}")


def unfinished(paths: Collection[str]) -> list[str]:
    """Return the objects that announce the beginning of a change whose end is not announced."""
    present = set(paths)
    return [path for path in paths if has_begun(path) and end_of(path) not in present]


def read_announcements(objects: ObjectStore) -> dict[StepKey, list[str]]:
    """Return the steps of which a commit was replaced, removed or changed, each with what is announced."""
    announced: dict[StepKey, list[str]] = {}
    for name in objects.children(CHANGED):
        rank, _, rest = name.partition(".")
        step, _, word = rest.partition(".")
        if rank.isdecimal() and step.isdecimal() and word and "." not in word:
            announced.setdefault(StepKey(int(rank), int(step)), []).append(word)
    return announced
