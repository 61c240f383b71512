"""What steps share: what is written, when it is written again, and what a killed writer leaves."""

from pathlib import Path

import pytest

import ingest
from ingest.reader.cube_conditions import open_cubes
from tests.cube_stores import NAMES, Killed, Unpublished, assert_is_what_is_committed, once, put
from workers.store.consolidated import cubes
from workers.store.objects import ObjectStore

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
