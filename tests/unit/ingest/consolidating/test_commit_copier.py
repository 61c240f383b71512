"""The cubes have a copy of each commit, byte for byte, whatever happens to it."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from ingest.consolidating.consolidator import Consolidator
from ingest.reader.cube_conditions import ConsolidatedCubes, open_cubes
from tests.cube_stores import (
    Fragile,
    Killed,
    assert_copies_are_right,
    held_copies,
    once,
    put,
    run_with,
)
from tests.wrapped_objects import WrappedObjects
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import CHANGED, REMOVED, announce, read_announcements
from workers.store.objects import ObjectStore
from workers.store.record import WithoutTensors

KEY = StepKey(1, 2)
LEAF = f"{KEY.path}/zarr.json"

pytestmark = pytest.mark.usefixtures("small_grid")


def view_of(objects: ObjectStore) -> ConsolidatedCubes:
    cubes = open_cubes(objects)
    assert cubes is not None
    return cubes


def commit_steps(objects: ObjectStore, ranks: int = 3) -> None:
    for step in (1, 2, 4):
        for rank in range(ranks):
            put(objects, rank, step)


def _drop_tensors(objects: ObjectStore) -> None:
    committed = commit.read(objects, KEY)
    assert committed is not None
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))


def _publish_again(objects: ObjectStore) -> None:
    put(objects, KEY.rank, KEY.step or 0)


def _dump_again(objects: ObjectStore) -> None:
    put(objects, KEY.rank, KEY.step or 0, seed=1)


def _remove(objects: ObjectStore) -> None:
    announce(objects, KEY, REMOVED)
    objects.delete(LEAF)


def _spoil(objects: ObjectStore) -> None:
    announce(objects, KEY, "f" * 32)
    objects.put(LEAF, b"{")


def _add_a_rank(objects: ObjectStore) -> None:
    put(objects, 7, 2)


def _add_a_step(objects: ObjectStore) -> None:
    put(objects, 0, 5)


_CHANGES = [_drop_tensors, _publish_again, _dump_again, _remove, _add_a_rank, _add_a_step]


@pytest.mark.parametrize("change", _CHANGES, ids=lambda change: change.__name__)
def test_copies_follow_a_change(objects: ObjectStore, change: Callable[[ObjectStore], None]) -> None:
    commit_steps(objects)
    once(objects)
    assert_copies_are_right(view_of(objects))
    change(objects)
    once(objects)
    assert_copies_are_right(view_of(objects))
    assert read_announcements(objects) == {}


@pytest.mark.parametrize("change", _CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("writes", range(0, 12, 3))
def test_what_is_not_announced_is_right_whenever_the_consolidator_dies(
    objects: ObjectStore, change: Callable[[ObjectStore], None], writes: int
) -> None:
    commit_steps(objects)
    once(objects)
    change(objects)
    fragile = Fragile(objects, writes)
    with suppress(Killed), Consolidator(fragile, run_with(fragile)) as dying:
        dying.once()
    announced = read_announcements(objects)
    for key, text in held_copies(view_of(objects)).items():
        assert key in announced or objects.get(f"{key.path}/zarr.json") == text.encode(), key
    once(objects)
    assert_copies_are_right(view_of(objects))


def test_the_copy_of_a_damaged_commit_is_emptied(objects: ObjectStore) -> None:
    commit_steps(objects)
    once(objects)
    _spoil(objects)
    once(objects)
    assert KEY not in held_copies(view_of(objects))


def test_what_was_changed_by_hand_is_found_by_a_check(objects: ObjectStore) -> None:
    commit_steps(objects)
    once(objects)
    _drop_tensors(objects)
    objects.delete_many([f"{CHANGED}/{name}" for name in objects.children(CHANGED)])
    once(objects)
    assert held_copies(view_of(objects))[KEY].encode() != objects.get(LEAF)
    once(objects, check=True)
    assert_copies_are_right(view_of(objects))


def test_a_change_during_a_round_stays_announced(objects: ObjectStore) -> None:
    """The round has read the commit already, and copies what it has read."""

    class Late(WrappedObjects):
        is_done = False

        def put(self, key: str, data: bytes | bytearray) -> None:
            super().put(key, data)
            if "/commit/c/" in key and not self.is_done:
                self.is_done = True
                _drop_tensors(self._inner)

    commit_steps(objects)
    once(objects)
    _publish_again(objects)
    once(Late(objects))
    assert held_copies(view_of(objects))[KEY].encode() != objects.get(LEAF)
    assert KEY in read_announcements(objects)
    once(objects)
    assert_copies_are_right(view_of(objects))
