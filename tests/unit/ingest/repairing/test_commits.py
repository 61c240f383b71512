"""A damaged commit is made again from the objects of its generation."""

import json
from pathlib import Path

import pytest

from ingest.api import open_store, repair
from ingest.repairing.commits import commit_from_objects, list_generations, name_in
from tests.damages import DAMAGES
from workers.errors import DamagedStore
from workers.model import StepKey
from workers.store import commit
from workers.store.objects import ObjectStore
from workers.store.record import WithoutTensors

KEY = StepKey(0, 1)


def test_a_whole_commit_comes_out_as_it_is(whole_objects: ObjectStore) -> None:
    leaf = whole_objects.get(f"{KEY.path}/zarr.json")
    assert leaf is not None
    (name,) = list_generations(whole_objects, KEY)
    assert name_in(leaf) == name
    committed = open_store(whole_objects.address.url).step(0, 1).commit
    made = commit_from_objects(whole_objects, KEY, name, leaf=leaf, origin=committed.record.source)
    before, after = json.loads(leaf), json.loads(made.data)
    # Not in the objects: the time of the commit, and by which rules nothing was found.
    for document in (before, after):
        del document["attributes"]["dump_ingest_crc32c"]
        record = document["attributes"]["dump_ingest"]
        del record["committed_at"], record["summary"]["rules"]
    assert after == before


def test_without_the_commit_skipped_files_are_not_known(whole_objects: ObjectStore) -> None:
    (name,) = list_generations(whole_objects, KEY)
    made = commit_from_objects(whole_objects, KEY, name)
    assert made.summary.status == "partial"
    assert "skipped are not known" in made.record.problems[0]
    assert made.record.source.root == ""


@pytest.mark.parametrize("damage", ["metadata of a group missing", "numbers missing", "labels flipped"])
def test_a_generation_that_is_damaged_itself_gives_no_commit(store: Path, damage: str) -> None:
    DAMAGES[damage](store)
    objects = open_store(store).objects
    (name,) = list_generations(objects, KEY)
    with pytest.raises(DamagedStore):
        commit_from_objects(objects, KEY, name)


def test_what_is_left_of_the_commit_says_that_tensors_were_removed(lone_store: Path) -> None:
    objects = open_store(lone_store).objects
    committed = open_store(lone_store).step(0, 1).commit
    without = WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old")
    removed = commit.drop_tensors(objects, committed, without)
    objects.delete_many([f"{KEY.path}/{name}" for name in objects.sizes(KEY.path) if "/tensors/" in name])
    damaged = removed.data.replace(b'"reason":"old"', b'"reason":"odd"')
    made = commit_from_objects(objects, KEY, committed.fingerprint, leaf=damaged)
    assert made.without_tensors == WithoutTensors(without.at, "gc", "odd")
    with pytest.raises(DamagedStore):
        commit_from_objects(objects, KEY, committed.fingerprint)


def test_a_commit_follows_from_its_objects(lone_store: Path) -> None:
    """What only the commit said is not known any more, so the step is partial and says why."""
    DAMAGES["commit empty"](lone_store)
    assert repair(lone_store, apply=True).is_clean
    step = open_store(lone_store).step(0, 1)
    assert step.commit.summary.status == "partial"
    assert "made again" in step.commit.record.problems[0]
    assert [tensor.read().size for tensor in step.tensors()] == [200, 200, 200]
