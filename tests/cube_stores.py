"""Make stores with made-up commits, and check the cubes that a consolidator writes for them."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

import ingest
from bench.steps import commit_tables, make_tables
from ingest.consolidating.consolidator import Consolidator, StepsConsolidated
from ingest.dispatch.runners import RunJobs
from ingest.reader.cube_conditions import ConsolidatedCubes, open_cubes
from ingest.reader.snapshot import take_snapshot
from ingest.reader.step_statistics import StepStatistics, narrow_blocks
from tests.wrapped_objects import WrappedObjects
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store.consolidated.blocks import Block, TensorAxis, block_of
from workers.store.consolidated.cubes import GROUP, CubeGrid
from workers.store.objects import ObjectStore
from workers.tasks import consolidate

Job = TypeVar("Job")
Result = TypeVar("Result")

#: A grid in which a few steps and ranks already fill several chunks.
SMALL = CubeGrid(ranks=2, tensors=4, inner_tensors=2, steps=3)
NAMES = [f"op{i}" for i in range(6)]


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
    """Bring the cubes up to date."""
    with Consolidator(objects) as consolidator:
        return consolidator.once(check=check, rebuild=rebuild)


def from_tables(objects: ObjectStore) -> tuple[TensorAxis, dict[int, Block]]:
    """Return the axis of tensors and each step's block, built from the tables of its ranks."""
    axis = TensorAxis()
    snapshot = take_snapshot(ingest.DumpStore(objects), include_partial=True)
    blocks = {
        step: block_of(step, {rank: opened.tables for rank, opened in snapshot.of_step(step).items()}, axis)
        for step in snapshot.steps
    }
    return axis, blocks


def places_of(axis: TensorAxis, other: TensorAxis) -> npt.NDArray[np.int64]:
    """Return the positions of the tensors of one axis on another axis."""
    return np.array([other.keys.index(key) for key in axis.keys], np.int64)


def assert_is_what_is_committed(objects: ObjectStore) -> None:
    """Check that every value in the cubes equals that in the tables."""
    cubes = open_cubes(objects)
    assert cubes is not None
    axis, blocks = from_tables(objects)
    assert sorted(cubes.steps.tolist()) == sorted(blocks)
    assert not cubes.state.rewriting
    assert not cubes.state.uncut
    assert_cubes_by_tensor_are_right(cubes)
    assert_copies_are_right(cubes)
    assert set(axis.keys) <= set(cubes.axis.keys)
    places = places_of(axis, cubes.axis)
    for place, step in enumerate(cubes.steps.tolist()):
        expected = blocks[step].widened(len(axis))
        held = cubes.block(place)
        absent = [rank for rank in held.ranks if rank not in expected.ranks]
        assert not held.of_ranks(tuple(absent)).present.any()
        shared = held.of_ranks(expected.ranks)
        np.testing.assert_array_equal(shared.row[:, places], expected.row)
        np.testing.assert_array_equal(shared.statistics[:, places], expected.statistics)
        np.testing.assert_array_equal(shared.digest[:, places], expected.digest)
        assert shared.present.sum() == expected.present.sum()


def assert_copies_are_right(cubes: ConsolidatedCubes) -> None:
    """Check that the cubes have a copy of each commit, and none of what is not committed."""
    keys = [StepKey(rank, step) for step in cubes.steps.tolist() for rank in cubes.ranks.tolist()]
    leaves = {key: cubes.objects.get(f"{key.path}/zarr.json") for key in keys}
    assert held_copies(cubes) == {key: leaf.decode() for key, leaf in leaves.items() if leaf is not None}


def held_copies(cubes: ConsolidatedCubes) -> dict[StepKey, str]:
    """Return the copies of commits that are in the cubes."""
    shape = (cubes.state.steps, cubes.state.ranks)
    copies: dict[StepKey, str] = {}
    layout = cubes.layouts.commits
    for (place, chunk), name in layout.keys(shape).items():
        texts = layout.decode(cubes.objects.get(f"{GROUP}/{name}"), name)[0].tolist()
        ranks = cubes.ranks[chunk * layout.chunk[1] :].tolist()
        step = int(cubes.steps[place])
        copies |= {StepKey(rank, step): text for rank, text in zip(ranks, texts, strict=False) if text}
    return copies


def assert_cubes_by_tensor_are_right(cubes: ConsolidatedCubes) -> None:
    """Check that readers of many steps get what the cubes hold of each step."""
    tensors = np.arange(cubes.state.tensors)
    places = [place for place in range(cubes.state.steps) if place not in cubes.state.rewriting]
    for place, narrow in zip(places, narrow_blocks(cubes, places, FIELDS, tensors), strict=True):
        whole = cubes.block(place)
        np.testing.assert_array_equal(narrow.row, whole.row)
        np.testing.assert_array_equal(narrow.statistics, whole.statistics)


def assert_survey_is_right(objects: ObjectStore) -> None:
    """Check that the statistics that readers get from the cubes equal those in the tables."""
    axis, blocks = from_tables(objects)
    statistics = StepStatistics(take_snapshot(ingest.DumpStore(objects)))
    for block in list(statistics.blocks()):
        expected = blocks[block.step].widened(len(axis))
        places = places_of(axis, statistics.axis)
        wide = block.widened(len(statistics.axis))
        np.testing.assert_array_equal(wide.digest[:, places], expected.digest)
        np.testing.assert_array_equal(wide.row[:, places], expected.row)
        np.testing.assert_array_equal(wide.statistics[:, places], expected.statistics)


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


def run_with(objects: ObjectStore) -> RunJobs:
    """Run tasks one by one against `objects`."""

    def run(task: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(consolidate, "open_objects", lambda _: objects)
            yield from map(task, jobs)

    return run


class Unpublished(WrappedObjects):
    """Ends the process before the metadata of the cubes is written."""

    def put(self, key: str, data: bytes | bytearray) -> None:
        if key == "consolidated/zarr.json":
            raise Killed
        super().put(key, data)
