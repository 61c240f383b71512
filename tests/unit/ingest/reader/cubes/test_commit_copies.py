"""Readers of an object store take copies of commits that nobody has changed; else the commits themselves."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import ingest
from bench.steps import CountingStore
from ingest.reader.cube_conditions import open_cubes
from tests.cube_stores import once, put
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import REMOVED, announce
from workers.store.consolidated.cubes import GROUP
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.record import WithoutTensors

RANKS, STEPS = 8, 6
KEYS = [StepKey(rank, step) for step in range(STEPS) for rank in range(RANKS)]
KEY = StepKey(5, 3)
LEAF = f"{KEY.path}/zarr.json"


class Bucket(CountingStore):
    """A directory that is read as an object store is."""

    is_local = False


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A consolidated store."""
    store = tmp_path_factory.mktemp("copies") / "run.zarr"
    directory = open_objects(resolve(store))
    for key in KEYS:
        put(directory, key.rank, key.step or 0)
    once(directory)
    return store


@pytest.fixture
def objects(made_store: Path, store: Path) -> ObjectStore:
    """A copy of it, which the test may change."""
    return open_objects(resolve(shutil.copytree(made_store, store)))


def what_is_seen(store: ingest.DumpStore) -> dict[StepKey, bytes]:
    return {step.key: step.commit.data for step in store.select()}


def test_copies_are_the_commits_and_take_a_request_for_each_step(objects: ObjectStore) -> None:
    bucket = Bucket(objects)
    assert what_is_seen(ingest.DumpStore(bucket)) == what_is_seen(ingest.DumpStore(objects))
    assert bucket.requests == STEPS + 3  # the metadata of the view, its steps and its ranks


def _drop_tensors(objects: ObjectStore) -> None:
    committed = commit.read(objects, KEY)
    assert committed is not None
    commit.drop_tensors(objects, committed, WithoutTensors("2026-01-01T00:00:00+00:00", "gc", "old"))


def _dump_again(objects: ObjectStore) -> None:
    put(objects, KEY.rank, KEY.step or 0, seed=1)


def _publish_again(objects: ObjectStore) -> None:
    put(objects, KEY.rank, KEY.step or 0)


def _remove(objects: ObjectStore) -> None:
    announce(objects, KEY, REMOVED)
    objects.delete(LEAF)


def _add(objects: ObjectStore) -> None:
    put(objects, RANKS, KEY.step or 0)
    put(objects, 0, STEPS)


def _rebuild(objects: ObjectStore) -> None:
    put(objects, KEY.rank, KEY.step or 0, seed=1)
    once(objects, rebuild=True)


def _remove_the_view(objects: ObjectStore) -> None:
    objects.delete("consolidated/zarr.json")


def _spoil_copies(objects: ObjectStore) -> None:
    for name in objects.sizes("consolidated/commit"):
        objects.put(f"consolidated/commit/{name}", b"spoiled")


def _lose_copies(objects: ObjectStore) -> None:
    objects.delete_many([f"consolidated/commit/{name}" for name in objects.sizes("consolidated/commit")])


_CHANGES = [_drop_tensors, _dump_again, _publish_again, _remove, _add]
_OF_THE_VIEW = [_rebuild, _remove_the_view, _spoil_copies, _lose_copies]


@pytest.mark.parametrize("change", [*_CHANGES, *_OF_THE_VIEW], ids=lambda change: change.__name__)
def test_what_is_committed_is_seen_after_a_change(
    objects: ObjectStore, change: Callable[[ObjectStore], None]
) -> None:
    change(objects)
    assert what_is_seen(ingest.DumpStore(Bucket(objects))) == what_is_seen(ingest.DumpStore(objects))


def test_a_change_while_copies_are_read_is_seen_or_not_and_nothing_else(objects: ObjectStore) -> None:
    """The copy is of the question's time; what was announced before it is read itself."""
    before = objects.get(LEAF)

    class Changing(Bucket):
        changes: Iterator[Callable[[ObjectStore], object]] = iter([_dump_again, once])

        def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
            for change in self.changes:
                change(self._inner)
                break
            return super().get_many(keys)

    seen = what_is_seen(ingest.DumpStore(Changing(objects)))
    assert seen[KEY] in (before, objects.get(LEAF))


@pytest.mark.parametrize("text", ["{", "[]", '{"attributes": {}}', "of another step"])
def test_a_copy_that_is_not_the_commit_of_its_step_is_passed_over(objects: ObjectStore, text: str) -> None:
    if text == "of another step":
        text = (objects.get(f"{StepKey(0, 0).path}/zarr.json") or b"").decode()
    cubes = open_cubes(objects)
    assert cubes is not None
    layout = cubes.layouts.commits
    name = f"{GROUP}/{layout.key((3, 0))}"
    copies = layout.decode(objects.get(name), name).copy()
    copies[0, KEY.rank] = text
    objects.put(name, layout.encode(copies))
    bucket = Bucket(objects)
    assert what_is_seen(ingest.DumpStore(bucket)) == what_is_seen(ingest.DumpStore(objects))
    assert bucket.requests == STEPS + 3 + 1
