"""One listing of a store says what there is, and whose it is."""

from contextlib import suppress
from pathlib import Path

from ingest.store_gc.plan import Extent, take_inventory
from tests.gc_stores import objects_of
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import BEGUN, DONE, REMOVED, announce, changing, path_of, read_announcements

KEY = StepKey(0, 3)


def test_every_object_is_counted_once(store: Path) -> None:
    inventory = take_inventory(objects_of(store))
    files = [path for path in store.rglob("*") if path.is_file()]
    assert inventory.total.objects == len(files)
    assert inventory.total.nbytes == sum(path.stat().st_size for path in files)
    steps = {step.key: step for step in inventory.steps}
    assert set(steps) == {
        *(StepKey(rank, step) for rank in range(2) for step in range(6)),
        StepKey(0, 7),
    }
    below = sum((held.whole for step in steps.values() for held in step.generations.values()), Extent())
    below += sum((step.record for step in steps.values()), sum(inventory.temporaries.values(), Extent()))
    paths = [path.relative_to(store).as_posix() for path in files]
    assert below.objects == sum(path.startswith(tuple(f"{key.path}/" for key in steps)) for path in paths)


def test_what_no_commit_points_to_is_told_from_what_is_committed(store: Path) -> None:
    """The store has a previous generation of one step, a step without a commit, and a temporary object."""
    objects = objects_of(store)
    inventory = take_inventory(objects)
    uncommitted = {step.key: len(step.uncommitted) for step in inventory.steps if step.uncommitted}
    assert uncommitted == {StepKey(0, 5): 1, StepKey(0, 7): 1}
    for step in inventory.steps:
        committed = commit.read(objects, step.key)
        assert step.fingerprint == (committed.fingerprint if committed else "")
    (temporary,) = inventory.temporaries
    assert temporary == f"rank_0/step_0/.zarr.json.{'0' * 32}.tmp"


def test_changes_without_an_end_are_told_from_finished_ones(store: Path) -> None:
    objects = objects_of(store)
    with changing(objects, KEY):
        pass
    with suppress(RuntimeError), changing(objects, KEY):
        raise RuntimeError
    announce(objects, KEY, REMOVED)
    words = read_announcements(objects)[KEY]
    done = {word.removeprefix(DONE) for word in words if word.startswith(DONE)}
    (path,) = take_inventory(objects).unfinished_changes
    (lone,) = {word.removeprefix(BEGUN) for word in words if word.startswith(BEGUN)} - done
    assert path == path_of(KEY, f"{BEGUN}{lone}")


def test_a_damaged_commit_is_named(store: Path) -> None:
    (store / "rank_0" / "step_3" / "zarr.json").write_bytes(b"half of it")
    (step,) = [step for step in take_inventory(objects_of(store)).steps if step.damage]
    assert step.key == StepKey(0, 3)
    assert not step.fingerprint
