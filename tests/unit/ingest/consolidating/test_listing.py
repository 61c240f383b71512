"""What is committed, compared with what the cubes hold."""

import shutil
from pathlib import Path

from ingest.consolidating.consolidator import Consolidator
from ingest.consolidating.cube_writer import CubeWriter
from ingest.consolidating.listing import list_committed
from tests.cube_stores import put
from workers.model import StepKey
from workers.store.objects import ObjectStore


def test_without_cubes_every_committed_step_is_new(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    put(objects, 0, 2)
    put(objects, 5, 2)
    listed = list_committed(objects, None)
    assert listed.by_rank == {0: {1, 2}, 5: {2}}
    assert listed.new == listed.keys == {StepKey(0, 1), StepKey(0, 2), StepKey(5, 2)}
    assert listed.gone == set()
    assert StepKey(5, 2) in listed
    assert StepKey(5, 1) not in listed
    assert StepKey(6, 1) not in listed


def test_steps_that_came_and_steps_that_went_are_told_from_those_that_are_held(objects: ObjectStore) -> None:
    put(objects, 0, 1)
    put(objects, 0, 2)
    put(objects, 1, 1)
    with Consolidator(objects) as consolidator:
        consolidator.once()
    put(objects, 0, 3)
    for rank in (0, 1):
        shutil.rmtree(Path(objects.address.url) / f"rank_{rank}" / "step_1")
    listed = list_committed(objects, CubeWriter.load(objects, None, rebuild=False))
    assert listed.by_rank[0] == {2, 3}
    assert listed.new == {StepKey(0, 3)}
    assert listed.gone == {StepKey(0, 1), StepKey(1, 1)}
