"""Announcements of commits are read, and deleted when they are dealt with."""

from ingest.consolidating.announcements import clear_announcements, read_announcements
from tests.cube_stores import put
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import CHANGED, REMOVED
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


def test_an_announcement_of_a_commit_that_was_not_read_yet_stays(objects: ObjectStore) -> None:
    put(objects, 3, 12)
    objects.put(f"{CHANGED}/3.12.{'f' * 32}", b"")
    clear(objects)
    assert read_announcements(objects) == {KEY: ["f" * 32]}


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


def test_objects_with_other_names_are_not_announcements(objects: ObjectStore) -> None:
    for name in ("3.12", "3.x.removed", "readme", "3.12.a.b", ".12.removed"):
        objects.put(f"{CHANGED}/{name}", b"")
    assert read_announcements(objects) == {}
