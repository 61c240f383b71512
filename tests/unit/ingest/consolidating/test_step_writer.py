"""Steps are written block by block; killed at any moment, nobody sees a half."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import pytest

from ingest.consolidating.consolidator import Consolidator
from ingest.dispatch.runners import in_threads
from ingest.reader.cube_conditions import open_cubes
from tests.cube_stores import (
    NAMES,
    SMALL,
    Fragile,
    Job,
    Killed,
    Result,
    assert_cubes_by_tensor_are_right,
    assert_is_what_is_committed,
    assert_survey_is_right,
    once,
    put,
    run_with,
)
from workers.store.objects import ObjectStore
from workers.tasks.consolidate import ConsolidateJob


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
