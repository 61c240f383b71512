"""The cubes hold what the steps hold, however and how often they were written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.dispatch.runners import in_threads
from ingest.reader.cube_conditions import open_cubes
from tests.cube_stores import NAMES, assert_is_what_is_committed, once, put
from tests.dumps import DumpLibrary
from tests.pipeline import ingest_directly
from workers.errors import StoreUnavailable
from workers.model import StepKey
from workers.store import commit
from workers.store.backends.wrappers import ObservedObjects
from workers.store.commit import CHANGED
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve


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
