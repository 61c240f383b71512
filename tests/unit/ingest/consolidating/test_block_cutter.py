"""Full blocks of steps are cut along the tensors once, and again if one of their steps was written again."""

from pathlib import Path

import numpy as np
import pytest

from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.reader.cube_conditions import ConsolidatedCubes, open_cubes
from ingest.reader.step_statistics import aggregated_steps
from tests.cube_stores import NAMES, assert_is_what_is_committed, once, put
from workers.store.objects import ObjectStore

pytestmark = pytest.mark.usefixtures("small_grid")


def opened(objects: ObjectStore) -> ConsolidatedCubes:
    cubes = open_cubes(objects)
    assert cubes is not None
    return cubes


def times(objects: ObjectStore) -> dict[str, int]:
    """Return when each object of the cubes by tensor was written."""
    root = Path(objects.address.url) / "consolidated/by_tensor"
    return {
        str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()
    }


def test_only_the_block_of_a_step_that_is_dumped_again_is_written_again(objects: ObjectStore) -> None:
    for step in range(7):
        put(objects, 0, step)
    once(objects)
    before = times(objects)
    assert {name.split("/")[2] for name in before} == {"0", "1"}
    put(objects, 0, 7)
    once(objects)
    assert times(objects) == before
    put(objects, 0, 4, seed=1)
    put(objects, 0, 7, seed=1)
    once(objects)
    after = times(objects)
    assert {name.split("/")[2] for name in before if after[name] != before[name]} == {"1"}
    assert_is_what_is_committed(objects)


def test_ranks_and_tensors_that_come_later_are_absent_in_older_blocks(objects: ObjectStore) -> None:
    for step in range(3):
        put(objects, 0, step, NAMES[:2])
    once(objects)
    before = times(objects)
    for step in range(3, 6):
        for rank in range(4):
            put(objects, rank, step, [*NAMES, "more", "most", "last"])
    once(objects)
    cubes = opened(objects)
    assert {name for name, time in times(objects).items() if before.get(name) == time} == set(before)
    values = aggregated_steps(cubes, range(6), "max", np.arange(9))
    assert np.isnan(values[:3, 1:]).all()
    assert not np.isnan(values[3:]).any()
    assert_is_what_is_committed(objects)


def test_a_damaged_cube_is_named_and_its_block_is_read_step_by_step(objects: ObjectStore) -> None:
    for step in range(5):
        put(objects, 0, step)
    once(objects)
    put(objects, 0, 5)
    objects.put("consolidated/max/c/4/0/0", b"nothing")
    with Consolidator(objects) as kept:
        damaged = kept.once().damaged
        assert [reason.partition(":")[0] for reason in damaged] == ["consolidated/max/c/4/0/0"]
        assert opened(objects).state.uncut == (1,)
        revision = opened(objects).state.revision
        assert kept.once() == StepsConsolidated(damaged=damaged)
        assert opened(objects).state.revision == revision
        # Written again, it is whole.
        put(objects, 0, 4, seed=1)
        assert kept.once() == StepsConsolidated(rewritten=(4,))
    assert_is_what_is_committed(objects)
