"""A step is there or it is not; and what a store is not, nobody writes to or reads from."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.api import open_store
from ingest.store_gc.plan import GcPolicy
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import SMALL_GRID, ingest_directly, plan_all, run
from workers.errors import DumpIngestError, SourceChanged, StoreFormatError
from workers.model import StepKey
from workers.store import commit
from workers.store.commit import Commit, extend
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore
from workers.store.opening import connect, open_objects, resolve
from workers.tasks.consolidate import Sketches, sketches_of
from workers.tasks.convert import convert
from workers.tasks.publish import publish

KEY = StepKey(0, 0)


def objects_of(store: Path) -> ObjectStore:
    return connect(resolve(str(store)))


def content(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.fixture
def filled(made: MadeDump) -> MadeDump:
    """A dump of one step with several jobs in the small grid."""
    rng = np.random.default_rng(0)
    for slot in range(12):
        made.add(rng.normal(size=40).astype("<f4"), tensor_name(slot=slot, time=slot))
    made.add(b"text", "notes.txt")
    return made


def test_new_generation_lists_the_previous_ones(filled: MadeDump, store: Path) -> None:
    """They stay readable for whoever opened the store before, until they are collected."""
    names = []
    for _ in range(3):
        (summary,) = ingest_directly(filled.root, store)
        names.append(summary.fingerprint)
        opened = open_store(str(store)).step(0, 0)
        filled.add(np.zeros(3))
    committed = commit.read(objects_of(store), KEY)
    assert committed is not None
    assert committed.fingerprint == names[2]
    assert committed.record.previous == tuple(names[:2])
    assert opened.tensors()[0].read().shape == (40,)


def test_receipts_must_cover_the_plan(filled: MadeDump, store: Path) -> None:
    (plan,) = plan_all(filled.root, store, SMALL_GRID)
    with pytest.raises(DumpIngestError, match="do not cover"):
        publish(plan, [convert(job) for job in plan.jobs[1:]])


def test_record_says_what_is_in_the_step(filled: MadeDump, store: Path) -> None:
    filled.add(b"no npy file at all", tensor_name(time=100))
    filled.add(np.array([np.nan, np.inf, -np.inf, 1], "<f4"), tensor_name(time=101))
    filled.add(np.zeros(2), "odd\udcff.npy")
    (summary,) = ingest_directly(filled.root, store)
    assert (summary.status, summary.tensors, summary.files, summary.quarantined) == ("partial", 13, 2, 1)
    assert (summary.unparsed, summary.nan_count, summary.pos_inf_count, summary.neg_inf_count) == (1, 1, 1, 1)
    assert summary.anomalous_tensors == 1
    committed = commit.read(objects_of(store), KEY)
    assert committed is not None
    assert committed.summary == summary
    assert committed.record.nets == ("Net",)
    assert [problem.partition(": ")[0].rpartition("/")[2][:3] for problem in committed.record.problems] == [
        "odd",
        "Mat",
    ]
    on_disk = content(store / committed.prefix)
    assert {key: len(on_disk[key]) for key in committed.record.stored} == committed.record.stored
    assert summary.objects == len(on_disk) + 1
    datetime.fromisoformat(committed.record.committed_at).astimezone(UTC)


@pytest.mark.parametrize(
    "name",
    [
        b"\xff.0.0.1.output.0.DefaultFormat.npy",
        b"A.b.0.0.1.output.0.\xff.npy",
        b"A.b.0.0.1.output.0.D.\xff\xfe.npy",
        b"A.b%\xff.0.0.1.output.0.D.npy",
    ],
)
def test_names_that_are_no_text_do_not_keep_a_step_from_being_stored(
    name: bytes, made: MadeDump, store: Path
) -> None:
    """File names are bytes. Zarr strings and JSON are Unicode."""
    path = made.directory() / "x"
    raw = bytes(path.parent) + b"/" + name
    Path(raw.decode("utf-8", "surrogateescape")).write_bytes(made.add(np.arange(3.0)).read_bytes())
    (made.directory() / "link\udcff").symlink_to("nowhere")
    (summary,) = ingest_directly(made.root, store)
    assert summary.status == "partial"
    for data in content(store).values():
        assert b"\\udc" not in data  # no lone surrogate: strict JSON readers refuse those
    assert len(open_store(str(store)).step(0, 0).tables.labels) == 2


def change_leaf(store: Path, change: Any) -> None:
    path = store / KEY.path / "zarr.json"
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def test_newer_format_is_refused_with_what_to_do(filled: MadeDump, store: Path) -> None:
    ingest_directly(filled.root, store)
    change_leaf(store, lambda document: document["attributes"]["dump_ingest"].update(format_version=99))
    with pytest.raises(StoreFormatError, match="format 99") as raised:
        open_store(str(store)).step(0, 0)
    assert "Upgrade" in raised.value.hint
    root = store / "zarr.json"
    root.write_bytes(root.read_bytes().replace(b'"format_version":6', b'"format_version":99'))
    with pytest.raises(StoreFormatError, match="format 99"):
        open_store(str(store))


def test_steps_are_listed_in_order_and_odd_names_ignored(made: MadeDump, store: Path) -> None:
    for step in (10, 9, 0):
        made.add(np.zeros(1), step=step, rank=1)
        made.add(np.zeros(1), step=step, rank=0)
    (made.root / "notes.txt").touch()
    ingest_directly(made.root, store)
    (store / "rank_x" / "step_1").mkdir(parents=True)
    (store / "rank_0" / "step_y").mkdir()
    (store / "rank_0" / "step_77").mkdir()
    # Others than those that a rank and a step have: they would be these twice, or numbers that no cube holds.
    (store / "rank_00" / "step_9").mkdir(parents=True)
    (store / "rank_0" / "step_09").mkdir()
    (store / "rank_0" / f"step_{2**63}").mkdir()
    (store / "rank_0" / "step_78").touch()
    keys = open_store(str(store)).keys
    assert [(key.step, key.rank) for key in keys] == [
        (None, 0),
        (0, 0),
        (0, 1),
        (9, 0),
        (9, 1),
        (10, 0),
        (10, 1),
    ]


def test_totals_that_do_not_fit_the_rows_are_damage(filled: MadeDump, store: Path) -> None:
    """Listings and alerts go by the totals: a record that hides a NaN must not go unnoticed."""
    ingest_directly(filled.root, store)
    change_leaf(store, lambda document: document["attributes"]["dump_ingest"]["summary"].update(nan_count=3))
    (damage,) = open_store(str(store)).verify(rank=0, step=0)
    assert "nan_count" in damage.reason


def test_many_commits_are_read_at_once_and_damaged_ones_named(made: MadeDump, store: Path) -> None:
    for step in range(3):
        made.add(np.zeros(step + 1), step=step)
    fingerprints = {plan.key: run(plan).fingerprint for plan in plan_all(made.root, store)}
    (store / "rank_0/step_1/zarr.json").write_bytes(b"{}")
    keys = [StepKey(0, step) for step in (2, 1, 9, 0)]
    commits, damaged = commit.read_many(objects_of(store), keys)
    assert list(commits) == [StepKey(0, 2), StepKey(0, 0)]
    assert [*damaged] == [StepKey(0, 1)]
    assert "rank_0/step_1/zarr.json is not a commit record" in damaged[StepKey(0, 1)]
    records = commit.read_records(objects_of(store), keys)
    assert {key: record.fingerprint for key, record in records.items()} == {
        key: fingerprints[key] for key in (StepKey(0, 2), StepKey(0, 0))
    }


def test_a_generation_that_gc_removed_meanwhile_is_not_committed(made: MadeDump, store: Path) -> None:
    """Two watchers of a rank convert a step; gc removes it after one of them committed it."""
    made.add(np.ones(3, "<f4"), tensor_name(time=1), step=0)
    (plan,) = plan_all(made.root, store)
    receipts = [convert(job) for job in plan.jobs]
    publish(plan, receipts)
    assert ingest.apply_gc(store, ingest.plan_gc(store, GcPolicy(steps=(0,)))).objects
    with pytest.raises(SourceChanged, match="tensors/float32/c/0 was removed from the store meanwhile"):
        publish(plan, receipts)
    assert ingest.open_store(store).keys == []


EXTENDED = StepKey(0, 0)


@pytest.fixture
def objects(made: MadeDump, store: Path) -> ObjectStore:
    """A store of one step."""
    made.add(np.array([1, 2, -3], "<f4"), tensor_name(time=1), step=0)
    ingest_directly(made.root, store)
    return open_objects(StoreAddress(str(store)))


def _extended(objects: ObjectStore, committed: Commit) -> bool:
    return _extended_by(objects, committed, _sketches(objects))


def _extended_by(objects: ObjectStore, committed: Commit, sketches: Sketches) -> bool:
    return extend(objects, committed, sketches.documents, sketches.chunks)


def _sketches(objects: ObjectStore) -> Sketches:
    return sketches_of(open_store(objects.address.url).step(0, 0))


def _current(objects: ObjectStore) -> Commit:
    committed = commit.read(objects, EXTENDED)
    assert committed is not None
    return committed


def test_nodes_are_added_and_everything_else_stays(objects: ObjectStore) -> None:
    before = _current(objects)
    assert _extended(objects, before)
    after = _current(objects)
    assert after.nodes.keys() - before.nodes.keys() == {"histograms", "marginal_axes"}
    assert (after.fingerprint, after.record.committed_at) == (before.fingerprint, before.record.committed_at)
    assert after.record.format_version == before.record.format_version


def test_a_commit_that_changed_is_not_written_over(objects: ObjectStore) -> None:
    before = _current(objects)
    assert _extended(objects, before)
    assert not _extended(objects, before)


def test_tensors_that_go_in_the_window_are_taken_out_of_the_commit(objects: ObjectStore) -> None:
    before = _current(objects)
    sketches = _sketches(objects)
    shutil.rmtree(Path(objects.address.url) / before.prefix / "tensors")
    assert _extended_by(objects, before, sketches)
    after = _current(objects)
    assert after.without_tensors is not None
    assert not any(path.startswith("tensors") for path in after.nodes)
