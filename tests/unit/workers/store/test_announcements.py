"""Each change of a commit that exists is announced before it; a change within a generation after it, too."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.steps import commit_tables, make_tables
from tests.wrapped_objects import WrappedObjects
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import CHANGED, Commit, read_announcements
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.record import WithoutTensors

KEY = StepKey(3, 12)
LEAF = f"{KEY.path}/zarr.json"
WHY = WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old")


@pytest.fixture
def objects(store: Path) -> ObjectStore:
    return open_objects(resolve(store))


class Watched(WrappedObjects):
    """Keeps what was announced at each write of the commit."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.announced: list[list[str]] = []

    def put(self, key: str, data: bytes | bytearray) -> None:
        if key == LEAF:
            self.announced.append(read_announcements(self._inner).get(KEY, []))
        super().put(key, data)


def put(objects: ObjectStore, seed: int = 0) -> None:
    commit_tables(objects, KEY, make_tables(KEY, ["a", "b"], seed=seed))


def present(objects: ObjectStore) -> Commit:
    committed = commit.read(objects, KEY)
    assert committed is not None
    return committed


def kinds(words: list[str]) -> list[str]:
    return sorted(word.partition("-")[0] for word in words)


def test_a_first_commit_is_not_announced(objects: ObjectStore) -> None:
    put(objects)
    assert read_announcements(objects) == {}


def test_another_generation_is_announced_by_its_name(objects: ObjectStore) -> None:
    put(objects)
    watched = Watched(objects)
    put(watched, seed=1)
    assert watched.announced == [[present(objects).fingerprint]]


def _publish_again(objects: ObjectStore) -> None:
    put(objects)


def _drop_tensors(objects: ObjectStore) -> None:
    commit.drop_tensors(objects, present(objects), WHY)


def _extend(objects: ObjectStore) -> None:
    assert commit.extend(objects, present(objects), {"more": {"node_type": "group"}}, {})


def _spoil_and_publish(objects: ObjectStore) -> None:
    objects._inner.put(LEAF, b"{")  # type: ignore[attr-defined]
    put(objects)


def _go_back(objects: ObjectStore) -> None:
    """Commit a generation that was there before: what is there now names it already."""
    put(objects._inner, seed=1)  # type: ignore[attr-defined]
    objects.delete_many([f"{CHANGED}/{name}" for name in objects.children(CHANGED)])
    put(objects)


@pytest.mark.parametrize(
    "change",
    [_publish_again, _drop_tensors, _extend, _spoil_and_publish, _go_back],
    ids=lambda function: function.__name__,
)
def test_what_does_not_show_in_a_commit_is_announced_before_and_after(
    objects: ObjectStore, change: Callable[[ObjectStore], None]
) -> None:
    put(objects)
    watched = Watched(objects)
    change(watched)
    assert [kinds(words) for words in watched.announced] == [["begun"]]
    (begun, done) = sorted(read_announcements(objects)[KEY])
    assert begun.removeprefix("begun-") == done.removeprefix("done-")
