"""Cubes: what is read of them, when they count, and when the commits are read instead."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

import ingest
from bench.steps import CountingStore, commit_tables, make_tables
from ingest.api import ConsolidatedCubes, DumpStore, open_store
from ingest.reader import cube_conditions, cube_reader
from ingest.reader.cube_conditions import find, open_cubes, sketches_of_step
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import CleanSteps, aggregated_steps, narrow_blocks
from ingest.reader.step_tables import read_entries
from tests.cube_stores import NAMES, once, put
from tests.stores import MadeDump, ingest_directly, tensor_name
from tests.wrapped_objects import WrappedObjects
from workers.arrays.statistics import (
    FIELDS,
    NON_FINITE_FIELDS,
    STATISTICS,
    aggregated,
    default_aggregate,
    parts_of,
)
from workers.errors import DamagedStore, UsageError
from workers.model import StepKey
from workers.store import commit, tables
from workers.store.commit import REMOVED, announce
from workers.store.consolidated.cubes import GROUP, SKETCHES, CubeGrid
from workers.store.model import RowKind
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.record import WithoutTensors
from workers.store.sketch_columns import SketchColumns
from workers.store.sketches import StepSketches
from workers.store.step import StoredStep

# The cubes hold what the steps hold, and are read with few requests.


@pytest.fixture
def cubes(consolidated: DumpStore) -> ConsolidatedCubes:
    """The cubes of two ranks, two steps and ten tensors; one element of rank 1 step 9 is NaN."""
    return consolidated.consolidated()


def test_cubes_are_current_until_a_step_is_rewritten(cubes: ConsolidatedCubes) -> None:
    assert cubes.is_current()
    state = cubes.objects.get("consolidated/zarr.json")
    assert state is not None
    cubes.objects.put("consolidated/zarr.json", state.replace(b'"rewrites":0', b'"rewrites":1'))
    changed = open_cubes(cubes.objects)
    assert changed is not None
    assert changed.state.rewrites == 1
    assert not cubes.is_current()
    assert changed.is_current()


def test_steps_that_are_rewritten_or_partial_are_left_out(cubes: ConsolidatedCubes) -> None:
    assert cubes.left_out() == []
    cubes.table("status")[0, 1] = "partial"
    cubes._tables["quarantined"] = np.array([[0, 2], [0, 0]])
    assert [str(left) for left in cubes.left_out()] == ["rank 1 step 8: partial: 2 files quarantined"]
    assert cubes.left_out(include_partial=True) == []


# A part of the cubes is the same as that part of the whole, and takes only the inner chunks that hold it.


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of seven steps of three ranks, in chunks of two ranks, four tensors and three steps."""
    store, grid = tmp_path_factory.mktemp("view") / "run.zarr", CubeGrid(2, 4, 2, 3)
    objects = open_objects(resolve(store))
    commit.ensure_root(objects)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: grid))
        for step in range(7):
            for rank in (2, 0, 1):
                put(objects, rank, step, NAMES[: 3 + step % 4], anomalous=[step % 3])
            once(objects)
    return store


@pytest.fixture(scope="module")
def columns_of(stored: Path) -> ConsolidatedCubes:
    """The view of this store, which nobody changes."""
    return view_of(stored)


def view_of(store: Path) -> ConsolidatedCubes:
    opened = open_cubes(open_objects(resolve(store)))
    assert opened is not None
    return opened


@pytest.mark.parametrize("tensors", [[0], [1, 2], [3, 4, 5], [5], [0, 5], [0, 1, 2, 3, 4, 5]])
def test_some_tensors_are_those_of_the_whole_block(tensors: list[int], columns_of: ConsolidatedCubes) -> None:
    chosen = np.array(tensors)
    for place, narrow in enumerate(narrow_blocks(columns_of, range(7), FIELDS, chosen)):
        whole = columns_of.block(place)
        assert (narrow.step, narrow.ranks) == (whole.step, whole.ranks)
        np.testing.assert_array_equal(narrow.row, whole.row[:, chosen])
        np.testing.assert_array_equal(narrow.statistics, whole.statistics[:, chosen])


@pytest.mark.parametrize("tensors", [[0], [3, 4, 5], [0, 5], [0, 1, 2, 3, 4, 5]])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_some_tensors_together_are_those_of_the_blocks(
    statistic: str, tensors: list[int], columns_of: ConsolidatedCubes
) -> None:
    places = [6, 0, 3, 4]
    together = aggregated_steps(columns_of, places, statistic, np.array(tensors))
    order = [columns_of.ranks.tolist().index(rank) for rank in sorted(columns_of.ranks.tolist())]
    for number, place in enumerate(places):
        block = columns_of.block(place)
        values = sum(block.statistic(part)[:, tensors] for part in parts_of(statistic))
        expected = aggregated(np.asarray(values), default_aggregate(statistic))
        np.testing.assert_array_equal(together[number][order], expected)


class FarObjects(WrappedObjects):
    """A directory as if it were an object store; counts the ranges that are read."""

    is_local = False
    ranges = 0

    def get_range(self, key: str, start: int, stop: int | None = None) -> bytes | None:
        self.ranges += 1
        return super().get_range(key, start, stop)


@pytest.mark.parametrize("end_nbytes", [0, 1 << 15])
def test_from_an_object_store_the_indexes_are_read_once(
    end_nbytes: int, columns_of: ConsolidatedCubes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cube_reader, "_END_NBYTES", end_nbytes)
    monkeypatch.setattr(cube_reader, "_INDEXES", {})
    expected = aggregated_steps(columns_of, range(7), "max", np.array([0]))
    far = FarObjects(columns_of.objects)
    remote = ConsolidatedCubes(far, columns_of.state)
    # Two blocks of three steps and one step, two chunks of ranks: of each the end, which is all of a small
    # object, and then a part.
    for requests in (6 if end_nbytes else 12, 6):
        far.ranges = 0
        np.testing.assert_array_equal(aggregated_steps(remote, range(7), "max", np.array([0])), expected)
        assert far.ranges == requests
    # Steps that are written again have other indexes.
    rewritten = ConsolidatedCubes(
        far, msgspec.structs.replace(columns_of.state, rewrites=columns_of.state.rewrites + 1)
    )
    far.ranges = 0
    aggregated_steps(rewritten, range(7), "max", np.array([0]))
    assert far.ranges == (6 if end_nbytes else 12)


# Conditions on the cubes give what conditions on the steps give, from the cubes that they name.


def test_steps_that_are_not_searched_are_named(cubes: ConsolidatedCubes) -> None:
    cubes.table("status")[0, 1] = "partial"
    frame = find(cubes, "slot == 0", None, include_partial=False)
    assert frame.attrs["left_out"] == ["rank 1 step 8: partial"]
    assert len(frame) == 3
    assert len(find(cubes, "slot == 0", None, include_partial=True)) == 4
    assert find(cubes, "slot == 0", [9], include_partial=False).attrs["left_out"] == []


# Conditions on sketches give the same from the cubes as from the steps.


def values(step: int) -> list[np.ndarray]:
    random = np.random.default_rng(step)
    spread = (random.standard_normal(300) * 10.0 ** random.integers(-8, 6, 300)).astype("<f4")
    half = random.standard_normal(50).astype("<f2")
    half[:3] = [np.nan, np.inf, -np.inf]
    return [
        spread,
        spread,
        half,
        np.zeros(7, "<f4"),
        np.full(3, np.nan, "<f4"),
        np.arange(5),
        -np.abs(spread).astype("<f8") * 1e200,
        np.zeros(0, "<f4"),
        np.ones(4, bool),
    ]


@pytest.fixture
def sketched(made: MadeDump, store: Path) -> ingest.DumpStore:
    """Two steps with tensors of all kinds, and their cubes."""
    for step in (3, 4):
        for slot, tensor in enumerate(values(step)):
            made.add(tensor, tensor_name(slot=slot, time=slot + 1), step=step)
    ingest_directly(made.root, store, sketches=True)
    ingest.consolidate(store)
    return ingest.open_store(store)


def test_bounds_are_those_of_the_histograms(sketched: ingest.DumpStore) -> None:
    cubes = sketched.consolidated()
    wanted = {name.replace(".", "_"): place for place, name in enumerate(SKETCHES)}
    for place, step in enumerate(cubes.steps.tolist()):
        opened = sketched.step(0, step)
        known = sketches_of_step(cubes, place, wanted, np.ones(1, bool))
        columns = SketchColumns(opened.tables, "", lambda: StepSketches(read_entries(opened)))  # noqa: B023
        rows = cubes.cube("row", place)[0]
        for name, column in known.items():
            expected = columns.column(name)
            for side in (0, 1):
                np.testing.assert_array_equal(column[side][0][rows >= 0], expected[side][rows[rows >= 0]])


def test_a_step_need_not_have_objects_for_tensors_that_were_added_later(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: CubeGrid(1, 2, 2, 2))
    )
    for step, tensors in enumerate((1, 5)):
        dump = MadeDump(tmp_path / f"dump_{step}")
        for slot in range(tensors):
            dump.add(np.full(5, slot + 1.0, "<f4"), tensor_name(slot=slot, time=slot + 1), step=step)
        ingest_directly(dump.root, store, sketches=True)
        ingest.consolidate(store)
    cubes = ingest.open_store(store).consolidated()
    assert cubes.find("p99 > 2.5")["step"].tolist() == [1, 1, 1]
    assert cubes.find("p99 > 0.5", step=[0])["step"].tolist() == [0]
    open_objects(resolve(store)).delete(f"{GROUP}/sketches/c/1/0/0/0/1")
    with pytest.raises(DamagedStore, match="sketches/c/1/0/0/0/1: missing"):
        cubes.find("p99 > 2.5")


def test_steps_without_histograms_are_named(made: MadeDump, store: Path) -> None:
    made.add(values(1)[0], tensor_name(), step=1)
    ingest_directly(made.root, store, sketches=False)
    ingest.consolidate(store)
    cubes = ingest.open_store(store).consolidated()
    with pytest.raises(UsageError, match="1 tensor has no histogram") as caught:
        cubes.find("p99 > 1")
    assert "consolidate --rebuild" in caught.value.hint
    ingest.sketch(store)
    ingest.consolidate(store, rebuild=True)
    assert len(ingest.open_store(store).consolidated().find("abs_p99.9 > 1")) == 1


# Steps that the cubes know to be clean are passed over, and every answer stays what it was.


_RANKS, _STEPS = 3, 8
#: Steps whose number of NaN is not known; with NaN; with +Inf that is known, and that comes from nowhere.
_UNKNOWN, _NAN, _INF = 3, 5, 6


def _put(stepped: Path, rank: int, step: int) -> None:
    """Commit a step that has statistics alone."""
    key = StepKey(rank, step)
    made = make_tables(key, NAMES[: 4 + rank], [1] if step == _NAN and rank == 1 else [])
    made.labels[:, tables.LABELS.index("kind")] = RowKind.STATISTICS.value
    if step == _UNKNOWN:
        made.statistics[2, FIELDS.index("nan_count")] = np.nan
    if step == _INF:
        made.statistics[0, FIELDS.index("pos_inf_count")] = 2
    commit_tables(open_objects(resolve(stepped)), key, made)


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with statistics alone, with cubes in blocks of three steps and two ranks."""
    stepped = tmp_path_factory.mktemp("clean") / "run.zarr"
    commit.ensure_root(open_objects(resolve(stepped)))
    for step in range(_STEPS):
        for rank in range(_RANKS):
            _put(stepped, rank, step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CubeGrid, "for_size", classmethod(lambda *_: CubeGrid(2, 4, 2, 3)))
        once(open_objects(resolve(stepped)))
    return stepped


@pytest.fixture
def without_cubes(stepped: Path, tmp_path: Path) -> Path:
    """The same run without cubes, at a path of the same name."""
    copy = tmp_path / "run.zarr"
    shutil.copytree(stepped, copy, ignore=shutil.ignore_patterns("consolidated"))
    return copy


def _clean(stepped: Path, *counts: str, rank: int | None = None) -> list[int]:
    snapshot = take_snapshot(open_store(stepped), rank)
    clean = CleanSteps(snapshot, counts)
    return [step for step in snapshot.steps if step in clean]


def test_only_steps_of_which_every_count_is_known_are_clean(stepped: Path) -> None:
    assert _clean(stepped, *NON_FINITE_FIELDS) == [0, 1, 2, 4, 7]
    assert _clean(stepped, "nan_count") == [0, 1, 2, 4, 6, 7]
    assert _clean(stepped, *NON_FINITE_FIELDS[1:]) == [0, 1, 2, 4, 5, 7]
    assert _clean(stepped, *NON_FINITE_FIELDS, rank=0) == [0, 1, 2, 4, 5, 7]


ANSWERS: dict[str, Callable[[ingest.DumpStore], object]] = {
    "incidents": lambda opened: ingest.incidents(opened).to_dict()["incidents"],
    "origin of anything": lambda opened: ingest.origin(opened).to_dict(),
    "origin of NaN": lambda opened: ingest.origin(opened, cause="nan").to_dict(),
    "origin of Inf": lambda opened: ingest.origin(opened, cause="inf").to_dict(),
    "origin of an overflow": lambda opened: ingest.origin(opened, cause="overflow").to_dict(),
    "origin on one rank": lambda opened: ingest.origin(opened, rank=0).to_dict(),
    "origin in clean steps": lambda opened: ingest.origin(opened, step=[0, 1, 2]).to_dict(),
    "origin in clean steps and others": lambda opened: ingest.origin(opened, step=[2, 3, 4]).to_dict(),
}


@pytest.mark.parametrize("question", ANSWERS)
def test_answers_are_the_same_with_cubes_and_without(
    question: str, stepped: Path, without_cubes: Path
) -> None:
    ask = ANSWERS[question]
    answers = [repr(ask(open_store(path))).replace(str(path), "") for path in (stepped, without_cubes)]
    if question == "incidents":  # the id is one of the URL
        answers = [answer[answer.index("'kind'") :] for answer in answers]
    assert answers[0] == answers[1]


# Steps that the cubes exclude are not read, and every answer stays what it was.


_ALL_RANKS, _ALL_STEPS = (2, 0), 5


def conditions(rank: int, step: int) -> list[np.ndarray]:
    """Tensors whose sizes grow with the step; those of step 3 of rank 2 have an infinity."""
    random = np.random.default_rng(10 * step + rank)
    spread = (random.standard_normal(300) * 10.0**step).astype("<f4")
    if (rank, step) == (2, 3):
        spread[5] = np.inf
    return [spread, np.arange(4), np.zeros(5, "<f2"), *([np.full(3, -7.0, "<f4")] if step == 4 else [])]


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps of two ranks, and cubes with one rank and two tensors in a chunk."""
    root = tmp_path_factory.mktemp("possible")
    bounded = root / "run.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CubeGrid, "for_size", classmethod(lambda *_: CubeGrid(1, 2, 2, 2)))
        for rank in _ALL_RANKS:  # the higher one comes first on the axis of ranks
            dump = MadeDump(root / f"dump_{rank}")
            for step in range(_ALL_STEPS):
                for slot, tensor in enumerate(conditions(rank, step)):
                    dump.add(tensor, tensor_name(slot=slot, time=slot + 1), rank=rank, step=step)
            ingest_directly(dump.root, bounded, sketches=True)
            once(open_objects(resolve(bounded)))
    return bounded


@pytest.fixture
def bounded(made_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it whose cubes are asked however few steps there are."""
    monkeypatch.setattr(cube_conditions, "LEAST_STEPS", 1)
    return shutil.copytree(made_store, tmp_path / "run.zarr")


@pytest.fixture
def indexes_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int | None]]:
    """The ranks and steps whose index was read."""
    read: list[tuple[int, int | None]] = []
    of_step = StoredStep._read_tables

    def noted(step: StoredStep, objects: list[str]) -> dict[str, bytes]:
        read.append((step.key.rank, step.key.step))
        return of_step(step, objects)

    monkeypatch.setattr(StoredStep, "_read_tables", noted)
    return read


def found(bounded: Path, **conditions: str) -> list[tuple[int, int | None, str]]:
    tensors = ingest.open_store(bounded).tensors(**conditions)  # type: ignore[arg-type]
    return [(tensor.rank, tensor.step, tensor.name) for tensor in (*tensors, *tensors.undecided)]


CONDITIONS = (
    "max > 1e3",
    "pos_inf_count > 0",
    "p99 > 100",
    "p99.9 < 1 and max > 0",
    "not p50 <= 0.1",
    "underflow_e4m3 > 0.01 and rank == 0",
    "overflow_float16 > 0 or min == -7",
    "role == 'activation' and abs_p99 > 500",
    "zero_count / count > 0.5 and slot == 2",
    "nan_count != 0",
    "max > 1e300",
)


@pytest.mark.parametrize("where", CONDITIONS)
def test_what_is_found_is_the_same_with_cubes_and_without(where: str, bounded: Path) -> None:
    with_cubes = found(bounded, where=where)
    shutil.rmtree(bounded / "consolidated")
    assert with_cubes == found(bounded, where=where)


def test_only_steps_that_may_fulfil_it_are_read(
    bounded: Path, indexes_read: list[tuple[int, int | None]]
) -> None:
    assert found(bounded, where="pos_inf_count > 0") != []
    assert indexes_read == [(2, 3)]
    indexes_read.clear()
    assert found(bounded, where="p99 > 5e3") != []
    assert sorted(set(indexes_read)) == [(0, 4), (2, 4)]
    indexes_read.clear()
    assert found(bounded, where="max > 1e300") == []
    assert indexes_read == []


QUESTIONS: dict[str, Callable[[ingest.DumpStore], object]] = {
    "precision": lambda opened: ingest.precision(opened, formats=["e4m3"], where="p99 > 5e3").to_dict(),
    "outliers": lambda opened: ingest.outliers(opened, where="max > 5e3").to_dict(),
    "quantiles": lambda opened: ingest.quantiles(opened, where="max > 5e3").to_dict(),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_about_sketches_read_the_same_steps(
    question: str, bounded: Path, indexes_read: list[tuple[int, int | None]]
) -> None:
    answer = QUESTIONS[question](ingest.open_store(bounded))
    assert {step for _, step in indexes_read} == {4}
    shutil.rmtree(bounded / "consolidated")
    assert QUESTIONS[question](ingest.open_store(bounded)) == answer


# Readers of an object store take copies of commits that nobody has changed; else the commits themselves.


RANKS, STEPS = 8, 6
KEYS = [StepKey(rank, step) for step in range(STEPS) for rank in range(RANKS)]
KEY = StepKey(5, 3)
LEAF = f"{KEY.path}/zarr.json"


class Bucket(CountingStore):
    """A directory that is read as an object store is."""

    is_local = False


@pytest.fixture(scope="module")
def copied_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A consolidated store."""
    store = tmp_path_factory.mktemp("copies") / "run.zarr"
    directory = open_objects(resolve(store))
    for key in KEYS:
        put(directory, key.rank, key.step or 0)
    once(directory)
    return store


@pytest.fixture
def objects(copied_store: Path, store: Path) -> ObjectStore:
    """A copy of it, which the test may change."""
    return open_objects(resolve(shutil.copytree(copied_store, store)))


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
