"""What a consolidator copies of commits, and how it cuts blocks."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.reader.cube_conditions import ConsolidatedCubes, open_cubes
from ingest.reader.step_statistics import aggregated_steps
from tests.cube_stores import (
    NAMES,
    Fragile,
    Killed,
    assert_copies_are_right,
    assert_is_what_is_committed,
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

# The cubes have a copy of each commit, byte for byte, whatever happens to it.


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


# Full blocks of steps are cut along the tensors once, and again if one of their steps was written again.


def opened(objects: ObjectStore) -> ConsolidatedCubes:
    cubes = open_cubes(objects)
    assert cubes is not None
    return cubes


def times(objects: ObjectStore) -> dict[str, int]:
    """Return when each object of the cubes by tensor was written."""
    root = Path(objects.address.url) / "consolidated/by_tensor"
    return {
        str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()
    }


def test_only_the_block_of_a_step_that_is_dumped_again_is_written_again(objects: ObjectStore) -> None:
    for step in range(7):
        put(objects, 0, step)
    once(objects)
    before = times(objects)
    assert {name.split("/")[2] for name in before} == {"0", "1"}
    put(objects, 0, 7)
    once(objects)
    assert times(objects) == before
    put(objects, 0, 4, seed=1)
    put(objects, 0, 7, seed=1)
    once(objects)
    after = times(objects)
    assert {name.split("/")[2] for name in before if after[name] != before[name]} == {"1"}
    assert_is_what_is_committed(objects)


def test_ranks_and_tensors_that_come_later_are_absent_in_older_blocks(objects: ObjectStore) -> None:
    for step in range(3):
        put(objects, 0, step, NAMES[:2])
    once(objects)
    before = times(objects)
    for step in range(3, 6):
        for rank in range(4):
            put(objects, rank, step, [*NAMES, "more", "most", "last"])
    once(objects)
    cubes = opened(objects)
    assert {name for name, time in times(objects).items() if before.get(name) == time} == set(before)
    values = aggregated_steps(cubes, range(6), "max", np.arange(9))
    assert np.isnan(values[:3, 1:]).all()
    assert not np.isnan(values[3:]).any()
    assert_is_what_is_committed(objects)


def test_a_damaged_cube_is_named_and_its_block_is_read_step_by_step(objects: ObjectStore) -> None:
    for step in range(5):
        put(objects, 0, step)
    once(objects)
    put(objects, 0, 5)
    objects.put("consolidated/max/c/4/0/0", b"nothing")
    with Consolidator(objects) as kept:
        damaged = kept.once().damaged
        assert [reason.partition(":")[0] for reason in damaged] == ["consolidated/max/c/4/0/0"]
        assert opened(objects).state.uncut == (1,)
        revision = opened(objects).state.revision
        assert kept.once() == StepsConsolidated(damaged=damaged)
        assert opened(objects).state.revision == revision
        # Written again, it is whole.
        put(objects, 0, 4, seed=1)
        assert kept.once() == StepsConsolidated(rewritten=(4,))
    assert_is_what_is_committed(objects)
