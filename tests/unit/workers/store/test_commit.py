"""A step is there or it is not; and what a store is not, nobody writes to or reads from."""

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.api import open_store
from ingest.store_gc.plan import GcPolicy
from tests.object_store_contract import ObjectStoreContract, memory_url
from tests.stores import SMALL_GRID, MadeDump, ingest_directly, plan_all, run, tensor_name
from tests.wrapped_objects import WrappedObjects
from workers.errors import (
    DamagedStore,
    DumpIngestError,
    SourceChanged,
    StepRemoved,
    StoreFormatError,
    StoreUnavailable,
    TensorsRemoved,
    UsageError,
)
from workers.model import StepKey
from workers.store import commit, objects
from workers.store import step as steps
from workers.store.commit import Commit, extend
from workers.store.model import StoreAddress
from workers.store.objects import ObjectStore, Uploads
from workers.store.opening import connect, open_objects, resolve
from workers.store.prefetch import in_order, prefetch
from workers.store.record import WithoutTensors
from workers.store.step import StoredStep
from workers.store.tables import LABELS, NUMBERS
from workers.tasks.consolidate import Sketches, sketches_of
from workers.tasks.convert import convert
from workers.tasks.model import StepPlan
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
def empty(made: MadeDump, store: Path) -> ObjectStore:
    """A store of one step."""
    made.add(np.array([1, 2, -3], "<f4"), tensor_name(time=1), step=0)
    ingest_directly(made.root, store)
    return open_objects(StoreAddress(str(store)))


def _extended(empty: ObjectStore, committed: Commit) -> bool:
    return _extended_by(empty, committed, _sketches(empty))


def _extended_by(empty: ObjectStore, committed: Commit, sketches: Sketches) -> bool:
    return extend(empty, committed, sketches.documents, sketches.chunks)


def _sketches(empty: ObjectStore) -> Sketches:
    return sketches_of(open_store(empty.address.url).step(0, 0))


def _current(empty: ObjectStore) -> Commit:
    committed = commit.read(empty, EXTENDED)
    assert committed is not None
    return committed


def test_nodes_are_added_and_everything_else_stays(empty: ObjectStore) -> None:
    before = _current(empty)
    assert _extended(empty, before)
    after = _current(empty)
    assert after.nodes.keys() - before.nodes.keys() == {"histograms", "marginal_axes"}
    assert (after.fingerprint, after.record.committed_at) == (before.fingerprint, before.record.committed_at)
    assert after.record.format_version == before.record.format_version


def test_a_commit_that_changed_is_not_written_over(empty: ObjectStore) -> None:
    before = _current(empty)
    assert _extended(empty, before)
    assert not _extended(empty, before)


def test_tensors_that_go_in_the_window_are_taken_out_of_the_commit(empty: ObjectStore) -> None:
    before = _current(empty)
    sketches = _sketches(empty)
    shutil.rmtree(Path(empty.address.url) / before.prefix / "tensors")
    assert _extended_by(empty, before, sketches)
    after = _current(empty)
    assert after.without_tensors is not None
    assert not any(path.startswith("tensors") for path in after.nodes)


# A committed step: every payload as it was dumped, and what happened to it since it was opened.

LEAF = f"{KEY.path}/zarr.json"
WHY = WithoutTensors("2026-01-02T03:04:05+00:00", "gc", "old")
#: By slot; the first one has no elements.
VALUES = {slot: np.arange(40 * slot, dtype="<f4") for slot in range(4)}
TEXT = b"kept as it is, byte for byte"


def publish_made(made: MadeDump, store: Path) -> StoredStep:
    """Commit what the dump has, and open it."""
    (plan,) = plan_all(made.root, store, SMALL_GRID)
    run(plan)
    objects = open_objects(resolve(store))
    present = commit.read(objects, KEY)
    assert present is not None
    return StoredStep(objects, present)


@pytest.fixture
def step(made: MadeDump, store: Path) -> StoredStep:
    """Tensors and a file, in several shards."""
    for slot, values in VALUES.items():
        made.add(values, tensor_name(slot=slot, time=slot))
    made.add(TEXT, "notes.txt")
    return publish_made(made, store)


def row_of(step: StoredStep, slot: int) -> int:
    """Return the row of a tensor; -1 stands for the file."""
    return int(np.flatnonzero(step.tables.number("slot") == slot)[0])


def in_pieces(step: StoredStep, row: int) -> list[bytes]:
    return [piece for _, pieces in step.payloads([row], 64) for piece in pieces]


def test_a_payload_comes_back_in_whole_and_in_part(step: StoredStep) -> None:
    row = row_of(step, 3)
    assert step.read(row) == VALUES[3].tobytes()
    assert step.read(row, 40, 80) == VALUES[3].tobytes()[40:80]
    assert step.read(row, 40, 40) == step.read(row_of(step, 0)) == b""


def test_payloads_come_in_pieces_each_row_once(step: StoredStep) -> None:
    rows = range(len(step.tables.labels))
    contents = {row: [bytes(piece) for piece in pieces] for row, pieces in step.payloads(rows, 64)}
    expected = {row_of(step, slot): values.tobytes() for slot, values in VALUES.items()}
    assert {row: b"".join(pieces) for row, pieces in contents.items()} == {
        **expected,
        row_of(step, -1): TEXT,
    }
    assert max(len(piece) for pieces in contents.values() for piece in pieces) <= 64


def remove(step: StoredStep) -> None:
    step.objects.delete(LEAF)


def remove_tensors(step: StoredStep) -> None:
    commit.drop_tensors(step.objects, step.commit, WHY)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (remove, StepRemoved, "was removed since it was opened"),
        (remove_tensors, TensorsRemoved, "the tensors were removed on 2026-01-02T03:04 UTC by gc: old"),
    ],
)
def test_what_was_removed_meanwhile_is_not_damage(
    change: object, kind: type[UsageError], text: str, step: StoredStep
) -> None:
    """Its objects go, too; a reader is told what happened, and not that the store is broken."""
    assert callable(change)
    row = row_of(step, 3)
    assert step.removed_meanwhile() is None
    change(step)
    for key in step.objects.sizes(f"{step.commit.prefix}/tensors"):
        step.objects.delete(f"{step.commit.prefix}/tensors/{key}")
    with pytest.raises(kind, match=text):
        step.read(row)
    with pytest.raises(kind, match=text):
        in_pieces(step, row)


def test_a_step_without_tensors_has_its_files(step: StoredStep) -> None:
    without = StoredStep(step.objects, commit.drop_tensors(step.objects, step.commit, WHY))
    tensor, file = row_of(without, 3), row_of(without, -1)
    assert (without.has_tensors, without.has_payload(tensor), without.has_payload(file)) == (
        False,
        False,
        True,
    )
    assert without.read(file) == TEXT
    with pytest.raises(TensorsRemoved):
        without.read(tensor)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("array", "../../secret", "is not the name of an array"),
        ("array", "tensors/none", "the array tensors/none is missing"),
        ("offset", -1, "has no bytes"),
    ],
)
def test_a_place_that_nobody_wrote_is_damage(column: str, value: Any, text: str, step: StoredStep) -> None:
    row = row_of(step, 3)
    if column in LABELS:
        step.tables.labels[row, LABELS.index(column)] = value
    else:
        numbers = step.tables.numbers.copy()
        numbers[row, NUMBERS.index(column)] = value
        object.__setattr__(step.tables, "numbers", numbers)
    with pytest.raises(DamagedStore, match=f"rank 0 step 0: .*{text}"):
        step.read(row)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"dtype": "float17"}, "unknown type 'float17'"),
        ({"layout": "device", "device_shape": "1,x"}, "impossible device shape"),
        ({"layout": "device", "device_shape": "1,2", "format": "NZ"}, "impossible device layout"),
    ],
)
def test_a_tensor_that_cannot_be_is_damage(columns: dict[str, str], text: str, step: StoredStep) -> None:
    row = row_of(step, 3)
    for column, value in columns.items():
        step.tables.labels[row, LABELS.index(column)] = value
    with pytest.raises(DamagedStore, match=text):
        (step.element if "dtype" in columns else step.device)(row)


def test_an_abridged_commit_reads_one_array(step: StoredStep) -> None:
    """It goes with each task of Dask that reads a part of a tensor."""
    row = row_of(step, 3)
    path = str(step.tables.label("array")[row])
    alone = StoredStep(step.objects, step.commit.abridged(path), step.tables.only(row))
    assert list(alone.commit.nodes) == [path]
    assert alone.read(0) == VALUES[3].tobytes()


def committed(plan: StepPlan) -> StoredStep:
    run(plan)
    objects = open_objects(plan.store)
    present = commit.read(objects, plan.key)
    assert present is not None
    return StoredStep(objects, present)


@pytest.fixture
def rebuilt(made: MadeDump, store: Path) -> StoredStep:
    made.add(np.arange(40, dtype=">f8"))
    (plan,) = plan_all(made.root, store, SMALL_GRID)
    return committed(plan)


def test_a_payload_that_does_not_match_its_digest_is_damage(rebuilt: StoredStep) -> None:
    """At its end: a caller must not keep what it was given before."""
    pieces = iter([bytes(8), bytes(312)])
    parts = steps.part(rebuilt, 0, pieces)
    assert next(parts)
    with pytest.raises(DamagedStore, match="digest does not match"):
        list(parts)


# What a user typed becomes one address, and an address becomes one store per process.


@pytest.mark.parametrize("name", ["secret", "aws_secret_access_key", "password", "token", "account_key"])
def test_credentials_do_not_go_into_an_address(name: str) -> None:
    """An address is sent to every worker and shown to users."""
    with pytest.raises(UsageError, match=name):
        resolve("s3://bucket", {name: "x"})


def test_same_directory_is_the_same_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("run.zarr") == resolve(str(tmp_path / "run.zarr"))
    assert resolve("s3://b/p/") == resolve("s3://b/p")
    assert open_objects(resolve("run.zarr")) is open_objects(resolve(str(tmp_path / "run.zarr")))


@pytest.mark.parametrize("url", ["", "s3://", "memory://", "file:///", "s3:/bucket/run.zarr"])
def test_a_torn_url_is_no_local_directory(url: str) -> None:
    with pytest.raises(UsageError, match="names no place"):
        resolve(url)


@pytest.mark.parametrize("url", ["run.zarr", "file://run.zarr", Path("run.zarr")])
def test_a_relative_store_is_resolved_once_and_for_all(
    url: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers have working directories of their own.
    monkeypatch.chdir("/usr")
    assert resolve(url).url == "/usr/run.zarr"


# Results come in order, a bounded number ahead, and nothing goes on after the end.


def counted(drawn: list[int], count: int) -> Iterator[int]:
    """Yield numbers, and record each one that is drawn."""
    for number in range(count):
        drawn.append(number)
        yield number


def test_results_come_in_the_order_of_the_items() -> None:
    """Also if a later one is done first."""
    second_is_done = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert second_is_done.wait(10)
        if number == 1:
            second_is_done.set()
        return number * number

    assert list(prefetch(range(5), work, ahead=2, threads=2)) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_no_more_items_are_drawn_than_may_be_ahead(ahead: int) -> None:
    """What is ahead is in memory."""
    drawn: list[int] = []
    results = prefetch(counted(drawn, 10), str, ahead=ahead)
    assert drawn == []
    for number in range(10):
        assert next(results) == str(number)
        assert len(drawn) == min(number + ahead + 1, 10)


def test_error_comes_in_the_place_of_its_result() -> None:
    def invert(number: int) -> float:
        return 1 / number

    results = prefetch([2, 1, 0, 4], invert, ahead=3)
    assert [next(results), next(results)] == [0.5, 1.0]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_what_is_pending_is_cancelled_when_the_caller_stops() -> None:
    futures: list[Future[int]] = []

    def submit(number: int) -> Future[int]:
        futures.append(Future())
        if number == 0:
            futures[-1].set_result(0)
        return futures[-1]

    results = in_order(range(10), submit, ahead=3)
    assert next(results) == 0
    results.close()
    assert [future.cancelled() for future in futures] == [False, True, True, True]


# The contract holds for stores as they are opened, and for the wrapper that other tests use.


class TestOpenedDirectory(ObjectStoreContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return connect(resolve(f"file://{tmp_path}/store"))


class TestOpenedUrl(ObjectStoreContract):
    @pytest.fixture
    def objects(self) -> Iterator[ObjectStore]:
        with memory_url() as url:
            yield connect(resolve(url))


class SlowStore(WrappedObjects):
    """A directory whose writes wait until they are let go; it counts those that wait at once."""

    def __init__(self, root: Path) -> None:
        super().__init__(connect(resolve(str(root))))
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.at_once = self.most_at_once = self.most_nbytes = self.nbytes = 0
        self.fail = ""
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes | bytearray) -> None:
        with self._lock:
            self.at_once += 1
            self.nbytes += len(data)
            self.most_at_once = max(self.at_once, self.most_at_once)
            self.most_nbytes = max(self.nbytes, self.most_nbytes)
        self.begun.release()
        self.go.wait(10)
        with self._lock:
            self.at_once -= 1
            self.nbytes -= len(data)
        if key == self.fail:
            raise StoreUnavailable(f"cannot write {key}")
        super().put(key, data)


@pytest.fixture
def slow(tmp_path: Path) -> SlowStore:
    return SlowStore(tmp_path)


def fail_after_one(slow: SlowStore) -> None:
    with Uploads(slow) as running:
        running.put("a", b"")
        raise ZeroDivisionError


def test_everything_is_there_when_the_block_has_ended(slow: SlowStore) -> None:
    threading.Timer(0.1, slow.go.set).start()
    with Uploads(slow) as running:
        for number in range(20):
            running.put(f"a/{number}", bytearray([number]))
    assert slow.sizes("a") == {str(number): 1 for number in range(20)}
    assert [slow.get(f"a/{number}") for number in range(20)] == [bytes([number]) for number in range(20)]
    assert slow.most_at_once <= objects.UPLOADS_AT_ONCE


def test_bytes_on_their_way_are_bounded(slow: SlowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "UPLOADS_NBYTES", 100)
    slow.go.set()
    with Uploads(slow) as running:
        for number, size in enumerate([60, 40, 60, 60, 500, 10, 90]):
            running.put(str(number), bytes(size))
    # The one that is larger than the bound goes alone.
    assert slow.most_nbytes == 500
    assert len(slow.children()) == 7


def test_an_error_of_the_task_goes_first_and_leaves_nothing_running(slow: SlowStore) -> None:
    """A task that is tried again must not race with what it left behind."""
    slow.fail = "a"
    threading.Timer(0.1, slow.go.set).start()
    with pytest.raises(ZeroDivisionError):
        fail_after_one(slow)
    assert slow.at_once == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dump-ingest-upload")]
