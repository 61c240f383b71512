"""Announcements of commits are read, and deleted when they are dealt with."""

from collections.abc import Sequence

import pytest

from ingest.consolidating.consolidator import clear_announcements
from tests.cube_stores import put
from tests.wrapped_objects import WrappedObjects
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import CHANGED, DONE, REMOVED, changing, read_announcements
from workers.store.objects import ObjectStore

KEY = StepKey(3, 12)


def fingerprint(objects: ObjectStore) -> str:
    """Return the generation that is committed."""
    committed = commit.read(objects, KEY)
    assert committed is not None
    return committed.fingerprint


def clear(objects: ObjectStore, damaged: tuple[StepKey, ...] = ()) -> None:
    """Read announcements and commits, and clear what is dealt with."""
    announced = read_announcements(objects)
    commits, _ = commit.read_many(objects, list(announced))
    clear_announcements(objects, announced, commits, damaged)


def test_a_replaced_commit_is_announced_until_it_was_read(objects: ObjectStore) -> None:
    put(objects, 3, 12)
    assert read_announcements(objects) == {}
    put(objects, 3, 12, seed=1)
    first = fingerprint(objects)
    put(objects, 3, 12, seed=2)
    announced = read_announcements(objects)
    assert {key: set(generations) for key, generations in announced.items()} == {
        KEY: {first, fingerprint(objects)}
    }
    clear(objects)
    assert read_announcements(objects) == {}


def test_a_removal_stands_until_it_has_happened(objects: ObjectStore) -> None:
    put(objects, 3, 12)
    objects.put(f"{CHANGED}/3.12.{REMOVED}", b"")
    clear(objects)
    assert read_announcements(objects) == {KEY: [REMOVED]}
    objects.delete(f"{KEY.path}/zarr.json")
    clear(objects, damaged=(KEY,))
    assert read_announcements(objects) == {KEY: [REMOVED]}
    clear(objects)
    assert read_announcements(objects) == {}


def test_a_change_within_a_generation_stands_until_it_was_done_before_the_commit_was_read(
    objects: ObjectStore,
) -> None:
    put(objects, 3, 12)
    with changing(objects, KEY):
        clear(objects)
        assert len(read_announcements(objects)[KEY]) == 1
    clear(objects, damaged=(KEY,))
    assert read_announcements(objects) == {}


def test_that_a_change_has_begun_is_never_left_alone_by_a_kill(objects: ObjectStore) -> None:
    class Killed(Exception):
        pass

    class Fragile(WrappedObjects):
        def delete_many(self, keys: Sequence[str]) -> None:
            super().delete_many(keys[:1])
            raise Killed

    put(objects, 3, 12)
    with changing(objects, KEY):
        pass
    with pytest.raises(Killed):
        clear(Fragile(objects))
    (left,) = read_announcements(objects)[KEY]
    assert left.startswith(DONE)
    clear(objects)
    assert read_announcements(objects) == {}
