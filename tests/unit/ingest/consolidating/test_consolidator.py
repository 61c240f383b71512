"""The consolidator: which steps it writes, how, and that only one does."""

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from prometheus_client import CollectorRegistry

import ingest
from ingest.consolidating import consolidator as consolidator_module
from ingest.consolidating.consolidator import CommitsListed, Consolidator, LastFindings, StepsConsolidated
from ingest.consolidating.lease import Lease, LeaseHeld
from ingest.dispatch.runners import in_threads
from ingest.metrics import ConsolidatorMetrics
from ingest.reader.cube_conditions import open_cubes
from ingest.steps.events import AnomalousCommitRead
from tests.cube_stores import (
    NAMES,
    SMALL,
    Fragile,
    Job,
    Killed,
    Result,
    Unpublished,
    assert_cubes_by_tensor_are_right,
    assert_is_what_is_committed,
    assert_survey_is_right,
    once,
    put,
    run_with,
)
from tests.metric_values import value
from tests.stores import DumpLibrary, ingest_directly
from tests.wrapped_objects import WrappedObjects
from workers.errors import StoreUnavailable
from workers.events import Event
from workers.model import StepKey
from workers.store import commit
from workers.store.backends.wrappers import ObservedObjects
from workers.store.commit import CHANGED
from workers.store.consolidated import cubes
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.tasks.consolidate import ConsolidateJob

# The cubes hold what the steps hold, however and how often they were written.


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

    cubes = xr.open_zarr(tmp_path / "run.zarr" / "consolidated")

    assert dict(cubes.nan_count.sizes) == {"step": 3, "rank": 2, "tensor": 243}
    worst = cubes.nan_count.sel(step=2).max("rank")
    assert set(worst.tensor[worst.compute() > 0].op_type.values.tolist()) == {"Log", "ReduceMean", "Neg"}
    assert cubes.nan_count.sel(rank=0).sum() == 0
    log = cubes.sel(step=2, rank=1, tensor="Log.Default_net-LogLoss_Log-op0.output.0")
    assert (int(log["count"]), int(log.nan_count)) == (24, 2)
    digest: Any = zarr.open_group(tmp_path / "run.zarr" / "consolidated", mode="r")["digest"]
    assert np.shape(digest) == (3, 2, 243, 16)


@pytest.mark.usefixtures("small_grid")
def test_step_by_step_gives_what_all_at_once_gives(objects: ObjectStore) -> None:
    for step in range(7):
        for rank in range(3):
            put(objects, rank, step, NAMES[: 3 + step % 4], anomalous=[step % 3])
        assert once(objects).appended == (step,)
        assert_is_what_is_committed(objects)
    one_by_one = [cubes.block(place) for cubes in [open_cubes(objects)] if cubes for place in range(7)]

    assert once(objects, rebuild=True).appended == tuple(range(7))
    assert_is_what_is_committed(objects)
    cubes = open_cubes(objects)
    assert cubes is not None
    for place, before in enumerate(one_by_one):
        np.testing.assert_array_equal(cubes.block(place).statistics, before.statistics)


def test_a_step_that_is_dumped_again_is_taken_in_again(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    put(objects, 0, 2)
    once(objects)
    put(objects, 0, 1, seed=1, anomalous=[2])
    assert objects.children(CHANGED) != []
    assert once(objects) == StepsConsolidated(rewritten=(1,))
    assert_is_what_is_committed(objects)
    assert objects.children(CHANGED) == []


def test_an_announcement_that_is_lost_is_made_up_for_by_a_check(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    once(objects)
    put(objects, 0, 1, seed=1)
    for name in objects.children(CHANGED):
        objects.delete(f"{CHANGED}/{name}")
    assert once(objects) == StepsConsolidated()
    assert once(objects, check=True) == StepsConsolidated(rewritten=(1,))
    assert_is_what_is_committed(objects)


def test_a_damaged_step_is_named_and_the_rest_is_taken_in(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    put(objects, 1, 1)
    objects.put("rank_1/step_1/zarr.json", b"{}")
    found = once(objects)
    assert found.appended == (1,)
    assert [reason.partition(":")[0] for reason in found.damaged] == ["rank 1 step 1"]
    cubes = open_cubes(objects)
    assert cubes is not None
    assert cubes.ranks.tolist() == [0]


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
    cubes = open_cubes(objects)
    assert cubes is not None
    assert cubes.steps.tolist() == [1]
    assert once(objects).appended == (2,)
    assert_is_what_is_committed(objects)


# What steps share: what is written, when it is written again, and what a killed writer leaves.


_TABLES = (
    "fingerprint",
    "status",
    *cubes.SKETCH_TOTALS,
    "tensors",
    "statistics_only",
    "quarantined",
    "overflows",
    "disagreements",
    "anomalous_tensors",
)


@pytest.mark.usefixtures("small_grid")
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
    assert changed <= {"zarr.json", "step/c/0", "aggregate/c/0/0/0", *(f"{name}/c/0/0" for name in _TABLES)}


def test_a_view_that_began_with_few_ranks_is_made_anew_for_many(objects: ObjectStore) -> None:
    """Else each rank would have objects of its own for ever."""
    put(objects, 0, 1)
    once(objects)
    for rank in range(1, 8):
        put(objects, rank, 1)
    once(objects)
    cubes = open_cubes(objects)
    assert cubes is not None
    assert cubes.state.grid.ranks == 8
    assert_is_what_is_committed(objects)


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


@pytest.mark.usefixtures("small_grid")
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
    status = ingest.open_store(objects.address.url).consolidated().table("status")
    assert status[:, 2].tolist() == [""] * 5 + ["complete"]


# Steps are written block by block; killed at any moment, nobody sees a half.


@pytest.mark.usefixtures("small_grid")
def test_steps_of_which_a_rank_comes_late_are_written_again_block_by_block(objects: ObjectStore) -> None:
    """However many they are, memory is that of one block."""
    for step in range(8):
        put(objects, 0, step)
    once(objects)
    for step in range(8):
        put(objects, 1, step)
    held: list[int] = []

    def run(task: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
        held.append(len({job.step for job in jobs if isinstance(job, ConsolidateJob)}))
        return in_threads(task, jobs)

    with Consolidator(objects, run) as consolidator:
        assert consolidator.once().rewritten == tuple(range(8))
    assert max(held) == SMALL.steps
    assert_is_what_is_committed(objects)


@pytest.mark.usefixtures("small_grid")
def test_killed_before_any_write_it_goes_on_and_readers_never_see_a_half(objects: ObjectStore) -> None:
    """What readers are told to trust is right at each of these moments."""
    for rank in range(2):
        for step in (0, 1, 2):
            put(objects, rank, step)
    once(objects)
    put(objects, 1, 2, seed=1)  # to be written again, in a full block
    for rank in range(2):
        put(objects, rank, 3, [*NAMES, "new"])  # to be appended
    for writes in count():
        fragile = Fragile(objects, writes)
        try:
            Consolidator(fragile, run_with(fragile)).once()
        except Killed:
            assert_survey_is_right(objects)
            cubes = open_cubes(objects)
            assert cubes is not None
            assert_cubes_by_tensor_are_right(cubes)
            continue
        break
    assert writes > 20
    assert_is_what_is_committed(objects)


# What is committed, compared with what the cubes hold, and which ranks are listed for it.


class Listings(WrappedObjects):
    """Remembers which ranks are listed; refuses to list one of them."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.ranks: set[int] = set()
        self.refused = -1

    def children(self, prefix: str = "") -> list[str]:
        if prefix.startswith("rank_"):
            rank = int(prefix.removeprefix("rank_"))
            if rank == self.refused:
                raise StoreUnavailable("the store does not answer")
            self.ranks.add(rank)
        return super().children(prefix)

    def taken(self) -> set[int]:
        """Return the ranks that were listed since the last call."""
        taken, self.ranks = self.ranks, set()
        return taken


@pytest.fixture
def counted(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Listings:
    """Ten ranks with one step, of which a round lists three in turn."""
    monkeypatch.setattr(consolidator_module, "WINDOW", 3)
    for rank in range(10):
        put(objects, rank, 1)
    return Listings(objects)


def test_rounds_in_turn_take_in_what_comes_late_is_replaced_or_goes(counted: Listings) -> None:
    with Consolidator(counted, patience_s=1000) as consolidator:
        assert consolidator.once(listed_in_turn=True).appended == (1,)
        for rank in range(9):
            put(counted, rank, 2)
        assert consolidator.once(listed_in_turn=True).waiting == (2,)
        put(counted, 9, 2)
        assert consolidator.once(listed_in_turn=True).appended == (2,)
        put(counted, 9, 1, seed=1)  # replaced, and announced
        assert consolidator.once(listed_in_turn=True).rewritten == (1,)
        shutil.rmtree(Path(counted.address.url) / "rank_9" / "step_1")  # removed, and not announced
        rounds = [consolidator.once(listed_in_turn=True).rewritten for _ in range(4)]
        assert (1,) in rounds
    assert not once(counted)


# What a consolidator tells when it starts.


def test_findings_of_the_last_steps_are_told_once_with_the_time_of_their_commit(
    dumps: DumpLibrary, tmp_path: Path
) -> None:
    store = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    told: list[Event] = []
    last = LastFindings(open_objects(resolve(str(store))), told.append)
    listed = CommitsListed({0: 3, 1: 3}, (), -1)
    last.observe(listed)
    last.observe(listed)
    [event] = [event for event in told if isinstance(event, AnomalousCommitRead)]
    assert (event.key.rank, event.key.step) == (1, 3)

    registry = CollectorRegistry()
    ConsolidatorMetrics(registry).observe(event)
    labels = {"rank": "1", "rule": "nan", "severity": "critical"}
    assert value(registry, "dump_ingest_last_finding_step", **labels) == 3
    assert value(registry, "dump_ingest_last_finding_timestamp_seconds", **labels) == event.committed_at
    assert value(registry, "dump_ingest_findings_total", rule="nan", severity="critical") is None


# One process at a time may write, and whoever is refused hears who does.


def test_a_second_consolidator_is_refused_and_says_who_the_first_is(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    with Consolidator(objects), pytest.raises(LeaseHeld, match="is being written by process"):
        once(objects)
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


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"owner": "host:12:x"}',
        b'{"owner": "host", "renewed_at": 1e99}',
        b'{"owner": "host:pid:x", "renewed_at": 1.0}',
        b'{"owner": "host:99999999999999999999:x", "renewed_at": 1.0}',
        b'{"owner": "host:12:x", "renewed_at": "now"}',
    ],
)
def test_what_is_not_a_lease_protects_nobody(objects: ObjectStore, data: bytes) -> None:
    objects.put("consolidated/lease", data)
    lease = Lease(objects, "consolidated/lease", "the view", clock=lambda: 1.0)
    lease.acquire()
    lease.keep()
    lease.release()
    assert objects.get("consolidated/lease") is None
