"""Verifying: every byte is held against its checksum, and views against the steps."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.api import DumpStore, open_store
from ingest.reader.verifying import (
    ExpectedObjects,
    _payload_damage,
    _rounding,
    damage_in_listing,
    uncommitted,
    verify,
    verify_copies,
    verify_view,
)
from tests.cube_stores import once, put
from tests.gc_stores import age
from tests.stores import MadeDump, ingest_directly, tensor_name
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import CHANGED
from workers.store.consolidated.cubes import CubeGrid
from workers.store.opening import connect, open_objects, resolve

# Verifying names every kind of damage.


@pytest.mark.usefixtures("filled")
def test_verify_reads_what_other_libraries_open(store: Path) -> None:
    """They know nothing of the commit: to them the document beside an array is all there is."""
    (path,) = store.glob("rank_0/step_9/*/tensors/float32/zarr.json")
    path.write_text(path.read_text().replace("little", "big"))
    (damage,) = open_store(store).verify()
    assert str(path.relative_to(store)) in damage.reason


def test_totals_that_contradict_the_rows_are_named(filled: DumpStore, store: Path) -> None:
    path = store / "rank_1/step_9/zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["dump_ingest"]["summary"]["nan_count"] = 5
    path.write_text(json.dumps(document))
    reasons = [damage.reason for damage in verify(filled, [StepKey(1, 9)])]
    assert reasons == ["the commit says nan_count 5, its rows make 1"]


def test_statistics_are_computed_again(filled: DumpStore) -> None:
    step = filled.step(0, 8)
    (row, *_) = step.rows()
    wrong = step.tables.statistics.copy()
    wrong[row, FIELDS.index("max")] += 1
    step._tables = replace(step.tables, statistics=wrong)
    for _, pieces in step.payloads([row], 64):
        assert _payload_damage(step, row, pieces, {}) == "the statistics do not match: max"


def test_mean_may_differ_by_the_rounding_of_large_elements() -> None:
    stored = np.zeros(len(FIELDS))
    stored[FIELDS.index("min")], stored[FIELDS.index("max")] = -1e6, 2e6
    tolerance = dict(zip(FIELDS, _rounding(stored), strict=True))
    assert (tolerance["mean"], tolerance["std"], tolerance["max"]) == (2e-3, 2e-3, 0)


# What a listing shows of damage, without reading an object.


@pytest.mark.parametrize(
    ("pattern", "content", "reason"),
    [
        ("", None, ""),
        ("*/tensors/float64/c/0", None, "0 of 1 shards are there"),
        ("*/tensors/float64/c/0", b"short", "its shards have 5 bytes instead of"),
        ("*/index/numbers/c/0/0", None, "index/numbers/c/0/0 is missing or empty"),
        ("*/statistics/c/0/0", b"", "statistics/c/0/0 is missing or empty"),
        ("*/zarr.json", None, "zarr.json is missing or empty"),
    ],
)
def test_what_is_missing_is_named(pattern: str, content: bytes | None, reason: str, tmp_path: Path) -> None:
    dump = MadeDump(tmp_path / "dump")
    for rank in range(2):
        dump.add(np.arange(5.0), step=1, rank=rank)
    ingest_directly(dump.root, tmp_path / "run.zarr")
    objects = connect(resolve(tmp_path / "run.zarr"))
    records = commit.read_records(objects, [StepKey(0, 1), StepKey(1, 1)])
    expected = {key: ExpectedObjects.of(record) for key, record in records.items()}
    if pattern:
        (path,) = (tmp_path / "run.zarr/rank_1/step_1").glob(pattern)
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    damages = damage_in_listing(objects, expected)
    assert [damage.key for damage in damages] == ([StepKey(1, 1)] if reason else [])
    assert all(reason in damage.reason for damage in damages)


# What lies beside the steps is verified, too.


def test_a_step_without_a_commit_is_noticed_after_a_day(tmp_path: Path) -> None:
    """Until then somebody may be writing it."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in range(3):
        dump.add(np.arange(5.0), step=step)
    ingest_directly(dump.root, store)
    objects = connect(resolve(store))
    (store / "rank_0/step_1/zarr.json").unlink()
    (store / "rank_0/step_2/zarr.json").write_text("{}")  # damaged, not missing
    assert uncommitted(objects) == []
    age(store)
    assert uncommitted(objects) == [StepKey(0, 1)]
    assert uncommitted(objects, now=time.time() - 2 * 86400.0) == []


def test_a_copy_that_is_not_its_commit_is_named(tmp_path: Path) -> None:
    objects = open_objects(resolve(tmp_path / "run.zarr"))
    for key in (first := StepKey(0, 1)), StepKey(1, 1), StepKey(0, 2):
        put(objects, key.rank, key.step or 0)
    once(objects)
    put(objects, first.rank, first.step or 0)
    assert list(verify_copies(objects)) == []  # the change is announced
    objects.delete_many([f"{CHANGED}/{name}" for name in objects.children(CHANGED)])
    (damage,) = verify_copies(objects)
    assert "the copy of rank 0 step 1 is not its commit" in str(damage)
    assert once(objects, check=True).appended == ()  # nothing but the copy is written again
    assert list(verify_copies(objects)) == []
    for name in objects.sizes("consolidated/commit"):
        objects.put(f"consolidated/commit/{name}", b"spoiled")
    (damage,) = verify_copies(objects)
    assert "consolidated/commit" in str(damage)


def test_cubes_by_tensor_that_are_not_what_the_steps_have_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: CubeGrid(1, 8, 2, 2))
    )
    objects = open_objects(resolve(tmp_path / "run.zarr"))
    commit.ensure_root(objects)
    for step in range(5):
        put(objects, 0, step)
    once(objects)
    assert list(verify_view(objects)) == []
    key = "consolidated/by_tensor/max/c/{}/0/0"
    other = objects.get(key.format(1))
    assert other is not None
    objects.put(key.format(0), other)
    objects.delete("consolidated/by_tensor/row/c/1/0/0")
    assert sorted(map(str, verify_view(objects))) == [
        "consolidated/by_tensor/max: of steps 0-1, it has not what max has",
        "consolidated/by_tensor/row/c/1/0/0: missing",
    ]
    objects.put(key.format(0), other[:-1])
    assert any(key.format(0) in str(damage) for damage in verify_view(objects))
    # A check makes it again.
    assert once(objects, check=True).appended == (0, 1, 2, 3, 4)
    assert list(verify_view(objects)) == []


@pytest.fixture
def sketched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose view was made step by step; an object of `sketches` has two tensors."""
    monkeypatch.setattr(
        CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: CubeGrid(1, 2, 2, 2))
    )
    store = tmp_path / "run.zarr"
    for step in range(3):
        dump = MadeDump(tmp_path / f"dump_{step}")
        for slot in range(1 + 2 * step):
            values = np.full(5, slot + 1.0, np.float32)
            dump.add(values, tensor_name(slot=slot, time=slot + 1), step=step)
        ingest_directly(dump.root, store, sketches=True)
        ingest.consolidate(store)
    return store


def test_the_cube_of_sketches_is_read(sketched: Path) -> None:
    objects = open_objects(resolve(sketched))
    assert list(verify_view(objects)) == []
    key = "consolidated/sketches/c/{}/0/0/0/{}"
    first, other = key.format(2, 0), key.format(2, 1)
    kept = objects.get(first)
    assert kept is not None
    for damaged in (kept[:-1], bytes([kept[0] ^ 1]) + kept[1:]):
        objects.put(first, damaged)
        assert [first in str(damage) for damage in verify_view(objects)] == [True]
    objects.delete(first)
    assert [f"{first}: missing" in str(damage) for damage in verify_view(objects)] == [True]
    # What is not damaged, but of other tensors, has the wrong number of them.
    last = objects.get(key.format(2, 2))
    assert last is not None
    objects.put(first, last)
    assert list(map(str, verify_view(objects))) == [
        "consolidated/sketches: rank 0 step 2: it has histograms of 4 tensors instead of 5"
    ]
    # A check makes it again.
    objects.delete(other)
    assert once(objects, check=True).appended == (0, 1, 2)
    assert list(verify_view(objects)) == []
    assert objects.get(first) == kept
