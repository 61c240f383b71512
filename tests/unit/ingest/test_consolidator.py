"""The consolidated view is what the steps hold, however and how often it was made."""

import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
import zarr

import ingest
from bench.steps import commit_tables, make_tables
from ingest.consolidating.consolidator import Consolidator, StepsConsolidated, in_threads
from ingest.consolidating.lease import LEASE_S, Lease, LeaseHeld
from ingest.reader.consolidated import open_cubes
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import StepStatistics
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from tests.wrapped_objects import WrappedObjects
from workers.arrays.statistics import FIELDS
from workers.errors import DamagedStore, StoreUnavailable, UsageError
from workers.model import StepKey
from workers.store import commit, cubes
from workers.store.backends.observed import ObservedObjects
from workers.store.blocks import Block, TensorAxis, block_of
from workers.store.cubes import CubeGrid
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.tasks.consolidate import ConsolidateJob, ConsolidateResult

SMALL = CubeGrid(ranks=2, tensors=4, inner_tensors=2, steps=3)
NAMES = [f"op{i}" for i in range(6)]


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    """An empty store."""
    found = open_objects(resolve(tmp_path / "run.zarr"))
    commit.ensure_root(found)
    return found


@pytest.fixture
def _small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: SMALL))


def put(
    objects: ObjectStore,
    rank: int,
    step: int,
    names: Sequence[str] = NAMES,
    *,
    anomalous: Sequence[int] = (),
    seed: int = 0,
) -> None:
    """Commit one step."""
    key = StepKey(rank, step)
    commit_tables(objects, key, make_tables(key, names, anomalous, seed))


def once(objects: ObjectStore, *, check: bool = False, rebuild: bool = False) -> StepsConsolidated:
    """Bring the view up to date."""
    with Consolidator(objects) as consolidator:
        return consolidator.once(check=check, rebuild=rebuild)


def from_tables(objects: ObjectStore) -> tuple[TensorAxis, dict[int, Block]]:
    """Return every step as the tables of its ranks have it."""
    axis = TensorAxis()
    snapshot = take_snapshot(ingest.DumpStore(objects), include_partial=True)
    blocks = {
        step: block_of(step, {rank: one.tables for rank, one in snapshot.of_step(step).items()}, axis)
        for step in snapshot.steps
    }
    return axis, blocks


def places_of(axis: TensorAxis, other: TensorAxis) -> npt.NDArray[np.int64]:
    """Return where the tensors of one axis stand on another one."""
    return np.array([other.keys.index(key) for key in axis.keys], np.int64)


def assert_is_what_is_committed(objects: ObjectStore) -> None:
    """Compare every value of the view with the tables."""
    view = open_cubes(objects)
    assert view is not None
    axis, blocks = from_tables(objects)
    assert sorted(view.steps.tolist()) == sorted(blocks)
    assert not view.state.rewriting
    assert set(axis.keys) <= set(view.axis.keys)
    places = places_of(axis, view.axis)
    for place, step in enumerate(view.steps.tolist()):
        expected = blocks[step].widened(len(axis))
        found = view.block(place)
        absent = [rank for rank in found.ranks if rank not in expected.ranks]
        assert not found.of_ranks(tuple(absent)).present.any()
        mine = found.of_ranks(expected.ranks)
        np.testing.assert_array_equal(mine.row[:, places], expected.row)
        np.testing.assert_array_equal(mine.statistics[:, places], expected.statistics)
        np.testing.assert_array_equal(mine.digest[:, places], expected.digest)
        assert mine.present.sum() == expected.present.sum()


@pytest.mark.parametrize("name", ["nan-log-2rank", "lenet-4rank", "dtypes-1rank", "longnames-1rank"])
def test_the_view_of_a_real_dump_is_what_its_steps_hold(
    name: str, dumps: DumpLibrary, tmp_path: Path
) -> None:
    ingest_directly(dumps[name] / "dump", tmp_path / "run.zarr")
    objects = open_objects(resolve(tmp_path / "run.zarr"))
    once(objects)
    assert_is_what_is_committed(objects)


def test_it_opens_with_plain_xarray(dumps: DumpLibrary, tmp_path: Path) -> None:
    ingest_directly(dumps["nan-log-2rank"] / "dump", tmp_path / "run.zarr")
    once(open_objects(resolve(tmp_path / "run.zarr")))

    view = xr.open_zarr(tmp_path / "run.zarr" / "consolidated")

    assert dict(view.nan_count.sizes) == {"step": 3, "rank": 2, "tensor": 243}
    worst = view.nan_count.sel(step=2).max("rank")
    assert set(worst.tensor[worst.compute() > 0].op_type.values.tolist()) == {"Log", "ReduceMean", "Neg"}
    assert view.nan_count.sel(rank=0).sum() == 0
    log = view.sel(step=2, rank=1, tensor="Log.Default_net-LogLoss_Log-op0.output.0")
    assert (int(log["count"]), int(log.nan_count)) == (24, 2)
    digest: Any = zarr.open_group(tmp_path / "run.zarr" / "consolidated", mode="r")["digest"]
    assert np.shape(digest) == (3, 2, 243, 16)


@pytest.mark.usefixtures("_small_grid")
def test_step_by_step_gives_what_all_at_once_gives(objects: ObjectStore) -> None:
    for step in range(7):
        for rank in range(3):
            put(objects, rank, step, NAMES[: 3 + step % 4], anomalous=[step % 3])
        assert once(objects).appended == (step,)
        assert_is_what_is_committed(objects)
    one_by_one = [view.block(place) for view in [open_cubes(objects)] if view for place in range(7)]

    assert once(objects, rebuild=True).appended == tuple(range(7))
    assert_is_what_is_committed(objects)
    view = open_cubes(objects)
    assert view is not None
    for place, before in enumerate(one_by_one):
        np.testing.assert_array_equal(view.block(place).statistics, before.statistics)


@pytest.mark.usefixtures("_small_grid")
def test_what_was_written_is_not_written_again_but_the_last_block(objects: ObjectStore) -> None:
    for step in range(9):
        for rank in range(2):
            put(objects, rank, step)
    once(objects)
    root = Path(objects.address.url) / "consolidated"
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    for step in (9, 10):
        put(objects, 0, step)
        put(objects, 1, step)
        once(objects)
    changed = {
        str(path.relative_to(root)) for path, time in before.items() if path.stat().st_mtime_ns != time
    }
    assert changed <= {"zarr.json", "step/c/0", *(f"{name}/c/0/0" for name in _TABLES)}


_TABLES = (
    "fingerprint",
    "status",
    "tensors",
    "statistics_only",
    "quarantined",
    "overflows",
    "disagreements",
    "anomalous_tensors",
)


@pytest.mark.usefixtures("_small_grid")
def test_a_rank_that_comes_late_is_taken_in(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    assert once(objects).appended == (1,)
    for rank in (3, 1, 2):
        put(objects, rank, 1, [*NAMES, f"of {rank}"])
        assert once(objects) == StepsConsolidated(rewritten=(1,))
        assert_is_what_is_committed(objects)
    assert once(objects) == StepsConsolidated()


@pytest.mark.usefixtures("_small_grid")
def test_a_rank_that_begins_late_leaves_no_hole_in_the_tables(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new chunk of ranks, in steps beyond the first block of the tables."""
    monkeypatch.setattr(cubes, "_STEPS_OF_TABLES", 2)
    for step in range(5):
        put(objects, 0, step)
        put(objects, 1, step)
    once(objects)
    put(objects, 2, 5)
    assert once(objects).appended == (5,)
    assert not once(objects)
    assert_is_what_is_committed(objects)
    view = ingest.open_store(objects.address.url).consolidated()
    assert view.table("status")[:, 2].tolist() == [""] * 5 + ["complete"]


@pytest.mark.usefixtures("_small_grid")
def test_steps_of_which_a_rank_comes_late_are_written_again_block_by_block(objects: ObjectStore) -> None:
    """However many they are, memory is that of one block."""
    for step in range(8):
        put(objects, 0, step)
    once(objects)
    for step in range(8):
        put(objects, 1, step)
    held: list[int] = []

    def run(jobs: Sequence[ConsolidateJob]) -> Iterator[ConsolidateResult]:
        held.append(len({job.step for job in jobs}))
        return in_threads(jobs)

    with Consolidator(objects, run) as consolidator:
        assert consolidator.once().rewritten == tuple(range(8))
    assert max(held) == SMALL.steps
    assert_is_what_is_committed(objects)


def test_a_view_that_began_with_few_ranks_is_made_anew_for_many(objects: ObjectStore) -> None:
    """Else each rank would have objects of its own for ever."""
    put(objects, 0, 1)
    once(objects)
    for rank in range(1, 8):
        put(objects, rank, 1)
    once(objects)
    view = open_cubes(objects)
    assert view is not None
    assert view.state.grid.ranks == 8
    assert_is_what_is_committed(objects)


def test_a_step_that_is_dumped_again_is_taken_in_again(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    put(objects, 0, 2)
    once(objects)
    put(objects, 0, 1, seed=1, anomalous=[2])
    assert objects.children(commit.CHANGED) != []
    assert once(objects) == StepsConsolidated(rewritten=(1,))
    assert_is_what_is_committed(objects)
    assert objects.children(commit.CHANGED) == []


def test_an_announcement_that_is_lost_is_made_up_for_by_a_check(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    once(objects)
    put(objects, 0, 1, seed=1)
    for name in objects.children(commit.CHANGED):
        objects.delete(f"{commit.CHANGED}/{name}")
    assert once(objects) == StepsConsolidated()
    assert once(objects, check=True) == StepsConsolidated(rewritten=(1,))
    assert_is_what_is_committed(objects)


@pytest.mark.usefixtures("_small_grid")
def test_a_step_that_is_gone_leaves_nothing(objects: ObjectStore) -> None:
    for rank in range(3):
        put(objects, rank, 1)
    once(objects)
    objects.delete("rank_2/step_1/zarr.json")
    assert once(objects, check=True) == StepsConsolidated(rewritten=(1,))
    assert_is_what_is_committed(objects)


def test_a_damaged_step_is_named_and_the_rest_is_taken_in(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    put(objects, 1, 1)
    objects.put("rank_1/step_1/zarr.json", b"{}")
    found = once(objects)
    assert found.appended == (1,)
    assert [reason.partition(":")[0] for reason in found.damaged] == ["rank 1 step 1"]
    view = open_cubes(objects)
    assert view is not None
    assert view.ranks.tolist() == [0]


def test_damaged_tables_are_named_each_time_and_not_tried_again_and_again(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    put(objects, 1, 1)
    found = commit.read(objects, StepKey(1, 1))
    assert found is not None
    objects.put(f"{found.prefix}/statistics/c/0/0", b"nothing")
    with Consolidator(objects) as consolidator:
        taken = consolidator.once()
        assert taken.appended == (1,)
        assert [reason.partition(":")[0] for reason in taken.damaged] == ["rank 1 step 1"]
        assert consolidator.once() == StepsConsolidated(damaged=taken.damaged)
        put(objects, 1, 1, seed=1)
        assert consolidator.once() == StepsConsolidated(rewritten=(1,))
    assert_is_what_is_committed(objects)


class Killed(Exception):
    """The process ends here."""


class Fragile(WrappedObjects):
    """Ends the process before one of its writes."""

    def __init__(self, inner: ObjectStore, writes: int) -> None:
        super().__init__(inner)
        self._left = writes

    def put(self, key: str, data: bytes | bytearray) -> None:
        if not key.endswith("/lease"):
            self._left -= 1
            if self._left < 0:
                raise Killed
        super().put(key, data)


def run_with(objects: ObjectStore) -> Callable[[Sequence[ConsolidateJob]], Iterator[ConsolidateResult]]:
    """Run tasks one by one against `objects`."""

    def run(jobs: Sequence[ConsolidateJob]) -> Iterator[ConsolidateResult]:
        from workers.tasks import consolidate as task

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task, "open_objects", lambda _: objects)
            yield from map(task.consolidate, jobs)

    return run


@pytest.mark.usefixtures("_small_grid")
def test_killed_before_any_write_it_goes_on_and_readers_never_see_a_half(objects: ObjectStore) -> None:
    """What readers are told to trust is right at each of these moments."""
    for rank in range(3):
        for step in (1, 2):
            put(objects, rank, step)
    once(objects)
    put(objects, 1, 2, seed=1)  # to be written again
    for rank in range(3):
        put(objects, rank, 3, [*NAMES, "new"])  # to be appended
    for writes in count():
        fragile = Fragile(objects, writes)
        try:
            Consolidator(fragile, run_with(fragile)).once()
        except Killed:
            assert_survey_is_right(objects)
            continue
        break
    assert writes > 20
    assert_is_what_is_committed(objects)


class Unpublished(WrappedObjects):
    """Ends the process before the metadata of the view is written."""

    def put(self, key: str, data: bytes | bytearray) -> None:
        if key == "consolidated/zarr.json":
            raise Killed
        super().put(key, data)


def test_tensors_of_a_writer_that_was_killed_are_not_taken_for_those_of_the_next(
    objects: ObjectStore,
) -> None:
    """A worker outlives the consolidator, and keeps the axis that it has read."""
    put(objects, 0, 1)
    once(objects)
    put(objects, 0, 2, [*NAMES, "one"])
    with pytest.raises(Killed):
        once(Unpublished(objects))
    objects.delete("rank_0/step_2/zarr.json")
    put(objects, 0, 2, [*NAMES, "another"])
    assert once(objects).appended == (2,)
    assert_is_what_is_committed(objects)


def test_after_an_error_a_consolidator_goes_on_from_what_is_stored(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    with Consolidator(Unpublished(objects)) as consolidator:
        with pytest.raises(Killed):
            consolidator.once()
        consolidator.objects = objects
        assert consolidator.once().appended == (1,)
    assert_is_what_is_committed(objects)


def assert_survey_is_right(objects: ObjectStore) -> None:
    """Compare what readers make of the view with the tables."""
    axis, blocks = from_tables(objects)
    survey = StepStatistics(take_snapshot(ingest.DumpStore(objects)))
    for found in list(survey.blocks()):
        expected = blocks[found.step].widened(len(axis))
        places = places_of(axis, survey.axis)
        wide = found.widened(len(survey.axis))
        np.testing.assert_array_equal(wide.digest[:, places], expected.digest)
        np.testing.assert_array_equal(wide.row[:, places], expected.row)
        np.testing.assert_array_equal(wide.statistics[:, places], expected.statistics)


def test_a_second_consolidator_is_refused_and_says_who_the_first_is(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    with Consolidator(objects), pytest.raises(LeaseHeld, match="is being written by process"):
        once(objects)
    assert once(objects).appended == (1,)


def test_a_lease_of_a_dead_process_ends(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    dead = Lease(objects, "consolidated/lease", "the view", clock=lambda: 0.0)
    dead.acquire()
    assert once(objects).appended == (1,)


def test_a_lease_of_a_process_of_this_host_ends_with_it(objects: ObjectStore) -> None:
    """Whoever is started again after a crash need not wait a minute."""
    put(objects, 0, 1)
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    before = Lease(objects, "consolidated/lease", "the view")
    before.owner = f"{socket.gethostname()}:{ended.pid}:before"
    before._write()
    assert once(objects).appended == (1,)
    before.owner = f"another-host:{ended.pid}:before"
    before._write()
    with pytest.raises(LeaseHeld, match="on another-host"):
        once(objects)


def test_who_lost_the_lease_writes_nothing_more(objects: ObjectStore) -> None:
    """A process that was stopped for a minute goes on when another one has taken its place."""
    put(objects, 0, 1)
    now = 1000.0
    stopped = Consolidator(objects)
    stopped._lease = Lease(objects, "consolidated/lease", "the view", clock=lambda: now)
    stopped._lease.acquire()
    other = Lease(objects, "consolidated/lease", "the view", clock=lambda: now + LEASE_S + 1)
    other.acquire()
    now += LEASE_S + 2
    with pytest.raises(LeaseHeld):
        stopped.once()
    assert open_cubes(objects) is None


def test_a_lease_that_another_one_had_meanwhile_is_lost(objects: ObjectStore) -> None:
    """Also where the other one has let go of it, or its clock is far off."""
    now = 1000.0
    stopped = Lease(objects, "consolidated/lease", "the view", clock=lambda: now)
    stopped.acquire()
    other = Lease(objects, "consolidated/lease", "the view", clock=lambda: now + 10 * LEASE_S)
    other.acquire()
    with pytest.raises(LeaseHeld):
        stopped.keep()
    other.release()
    with pytest.raises(LeaseHeld):
        stopped.keep()


def test_a_lease_is_renewed_while_tasks_are_run(objects: ObjectStore) -> None:
    now = 1000.0
    renewed: list[float] = []

    def slow(jobs: Sequence[ConsolidateJob]) -> Iterator[ConsolidateResult]:
        nonlocal now
        for result in in_threads(jobs):
            now += LEASE_S / 2
            yield result
            renewed.append(lease._renewed_at)

    for step in range(4):
        put(objects, 0, step)
    lease = Lease(objects, "consolidated/lease", "the view", clock=lambda: now)
    with Consolidator(objects, slow) as consolidator:
        consolidator._lease = lease
        objects.delete("consolidated/lease")
        lease.acquire()
        assert consolidator.once().appended == (0, 1, 2, 3)
    assert renewed == sorted(set(renewed))


def test_a_step_waits_for_all_ranks_but_not_for_ever(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    put(objects, 1, 1)
    now = 0.0
    consolidator = Consolidator(objects, in_threads, 60.0, lambda: now)
    assert consolidator.once().appended == (1,)
    put(objects, 0, 2)
    assert consolidator.once() == StepsConsolidated(waiting=(2,))
    now = 61.0
    assert consolidator.once().appended == (2,)
    put(objects, 1, 2)
    assert consolidator.once().rewritten == (2,)
    assert_is_what_is_committed(objects)


def test_without_a_store_or_a_view_it_says_so(tmp_path: Path, objects: ObjectStore) -> None:
    with pytest.raises(UsageError, match="no dump-ingest store"):
        ingest.consolidate(tmp_path / "nothing")
    with pytest.raises(UsageError, match="no consolidated view"):
        ingest.open_store(objects.address.url).consolidated()
    assert once(objects) == StepsConsolidated()


def test_a_store_that_refuses_leaves_the_view_as_it_was(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(objects, 0, 1)
    once(objects)
    put(objects, 0, 2)

    def refuse(_store: ObjectStore, _objects: Mapping[str, bytes]) -> None:
        raise StoreUnavailable("full")

    with monkeypatch.context() as patch:
        patch.setattr(ObservedObjects, "put_many", refuse)
        with pytest.raises(StoreUnavailable):
            once(objects)
    view = open_cubes(objects)
    assert view is not None
    assert view.steps.tolist() == [1]
    assert once(objects).appended == (2,)
    assert_is_what_is_committed(objects)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-40],
        lambda data: data.replace(b'"steps":1', b'"steps":-1', 1),
        lambda data: data.replace(b'"tensors":6', b'"tensors":99999999999', 1),
        lambda data: data.replace(b'"grid":{', b'"grid":{"more":1,', 1),
        lambda data: data.replace(b'"steps":1', b'"steps":"1"', 1),
        lambda data: data.replace(b'"rewriting":[]', b'"rewriting":[7]', 1),
        lambda data: data.replace(b'"ranks":1,', b'"ranks":Infinity,', 1),
        lambda _: b"[" * 100_000,
        lambda _: b"null",
    ],
)
def test_damaged_metadata_is_named_and_readers_do_without(
    objects: ObjectStore, change: Callable[[bytes], bytes]
) -> None:
    put(objects, 0, 1)
    once(objects)
    data = objects.get("consolidated/zarr.json")
    assert data is not None
    objects.put("consolidated/zarr.json", change(data))
    with pytest.raises(DamagedStore) as raised:
        ingest.open_store(objects.address.url).consolidated()
    assert "--rebuild" in raised.value.hint
    assert_survey_is_right(objects)
    once(objects, rebuild=True)
    assert_is_what_is_committed(objects)


@pytest.mark.usefixtures("_small_grid")
def test_a_damaged_cube_is_named_and_readers_do_without(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    once(objects)
    objects.put("consolidated/max/c/0/0/0", b"nothing")
    view = ingest.open_store(objects.address.url).consolidated()
    with pytest.raises(DamagedStore, match="consolidated/max/c/0/0/0"):
        view.block(0)
    assert_survey_is_right(objects)


@pytest.mark.usefixtures("_small_grid")
def test_conditions_are_asked_of_the_view(objects: ObjectStore) -> None:
    for step in range(5):
        for rank in range(3):
            put(objects, rank, step, anomalous=[rank, 4] if step > 2 else [])
    once(objects)
    view = ingest.open_store(objects.address.url).consolidated()
    found = view.find("nan_count > 0 and rank != 1")
    expected = [(s, r, f"op{i}") for s in (3, 4) for r in (0, 2) for i in sorted({r, 4})]
    assert list(zip(found.step, found["rank"], found.op_name, strict=True)) == expected
    assert view.find("nan_count > 0 and max > 1e30").empty
    assert len(view.find("op_name == 'op1'", step=[2])) == 3
    assert len(view.find("max < 1e30")) == 5 * 3 * 6
    with pytest.raises(UsageError, match="not a column"):
        view.find("dtype == 'float32'")


def test_partial_steps_are_left_out_of_conditions_and_named(objects: ObjectStore) -> None:
    for rank in range(2):
        key = StepKey(rank, 1)
        status = "partial" if rank else "complete"
        commit_tables(objects, key, make_tables(key, NAMES, [0], 0), status=status)
    once(objects)
    view = ingest.open_store(objects.address.url).consolidated()
    found = view.find("nan_count > 0")
    assert found["rank"].tolist() == [0]
    assert found.attrs["left_out"] == ["rank 1 step 1: partial"]
    assert view.find("nan_count > 0", include_partial=True)["rank"].tolist() == [0, 1]
    with pytest.raises(UsageError, match="no step 7") as raised:
        view.find("nan_count > 0", step=[7])
    assert "steps 1" in raised.value.hint


def test_what_is_not_known_is_nan_in_conditions(objects: ObjectStore) -> None:
    """As in `DumpStore.tensors`: statistics alone may tell the maximum and not how many NaN there are."""
    key = StepKey(0, 1)
    made = make_tables(key, NAMES)
    made.statistics[2] = np.nan
    made.statistics[2, FIELDS.index("max")] = 1e9
    commit_tables(objects, key, made)
    put(objects, 1, 1, NAMES[:2])
    once(objects)
    store = ingest.open_store(objects.address.url)
    for where in ("nan_count > 0 or max > 1e8", "not nan_count == 0", "nan_count == 0"):
        found = store.consolidated().find(where)
        expected = store.tensors(where=where)
        assert list(zip(found["rank"], found.op_name, strict=True)) == [
            (one.rank, one.op_name) for one in sorted(expected, key=lambda one: (one.rank, one.row))
        ]


def test_a_condition_is_asked_anew_when_steps_were_written_again(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    once(objects)
    view = ingest.open_store(objects.address.url).consolidated()
    put(objects, 0, 1, anomalous=[2])
    once(objects)
    assert view.find("nan_count > 0").op_name.tolist() == ["op2"]


def test_tensors_of_one_name_in_several_graphs_have_names_of_their_own(objects: ObjectStore) -> None:
    key = StepKey(0, 1)
    made = make_tables(key, ["op", "op", "op", "op"])
    made.labels[1, 2] = "1"
    made.labels[2, 2] = "1"
    made.labels[2, 1] = "Net"
    commit_tables(objects, key, made)
    once(objects)
    view = ingest.open_store(objects.address.url).consolidated()
    names = view.tensors
    assert len(set(names)) == 4
    assert names[0] == "MatMul.op.output.0"
    assert_is_what_is_committed(objects)
