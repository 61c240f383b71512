"""One step of some ranks, added to the cubes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import ingest
from ingest.consolidating.consolidator import Consolidator
from ingest.reader.cubes.conditions import ConsolidatedCubes, open_cubes
from tests.cube_stores import NAMES, SMALL, Job, Result, once, put
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.replicas import Replicas
from workers.arrays.statistics import NON_FINITE_FIELDS
from workers.errors import UsageError
from workers.store import commit
from workers.store.consolidated.cubes import GROUP, CubeGrid
from workers.store.objects import ObjectStore
from workers.store.opening import open_objects, resolve
from workers.store.sketches import HISTOGRAM_TABLE
from workers.tasks.consolidate import (
    Consolidated,
    ConsolidateJob,
    ConsolidateResult,
    CutBlock,
    CutJob,
    UnknownTensors,
    consolidate,
    cut_by_tensor,
)

OPERATORS = [f"MatMul.net-op{number}.output.0" for number in range(3)]


@pytest.fixture
def replicas() -> Replicas:
    """Two ranks with one step of three tensors, and a third rank without the last of them."""
    replicas = Replicas()
    for rank in range(2):
        replicas.put(rank, 5, dict.fromkeys(OPERATORS, rank))
    replicas.put(2, 5, dict.fromkeys(OPERATORS[:2], 2))
    return replicas


def results(replicas: Replicas) -> list[ConsolidateResult]:
    """Consolidate everything; return what each task came to."""
    recorded: list[ConsolidateResult] = []

    def run(task: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
        for job in jobs:
            result = task(job)
            assert isinstance(result, Consolidated | UnknownTensors)
            recorded.append(result)
            yield result

    # Not entered: nobody else wants the lease.
    Consolidator(replicas.objects, run).once()
    return recorded


def test_a_step_with_tensors_that_are_not_on_the_axis_writes_nothing_and_names_them() -> None:
    replicas = Replicas()
    replicas.put(0, 5, dict.fromkeys(OPERATORS, 1))
    job = ConsolidateJob(
        replicas.objects.address, "writer", CubeGrid.for_size(1, 3), 0, 5, 0, 0, members=((0, 0),)
    )
    result = consolidate(job)
    assert isinstance(result, UnknownTensors)
    assert [key.name for key in result.keys] == OPERATORS
    assert not list(replicas.objects.sizes(GROUP))


def test_a_task_alone_puts_the_tensors_at_the_end_of_the_axis_itself(replicas: Replicas) -> None:
    (result,) = results(replicas)
    assert isinstance(result, Consolidated)
    assert [key.name for key in result.keys] == OPERATORS
    assert result.job.width == len(OPERATORS)


def test_counts_of_a_tensor_that_a_rank_does_not_have_are_unknown(replicas: Replicas) -> None:
    *_, result = results(replicas)
    assert isinstance(result, Consolidated)
    counts = result.anomalies[NON_FINITE_FIELDS.index("nan_count")]
    places = [place for _, place in result.job.members]
    assert counts[places].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, -1]]


def test_damaged_tables_cost_their_rank_alone(replicas: Replicas) -> None:
    for name in replicas.objects.sizes("rank_1/step_5"):
        if name.endswith("labels/c/0/0"):
            replicas.objects.put(f"rank_1/step_5/{name}", b"damaged")
    *_, result = results(replicas)
    assert isinstance(result, Consolidated)
    assert set(result.fingerprints) == {0, 2}
    assert "rank 1 step 5" in result.damaged[1]


@pytest.fixture
def filled(made: MadeDump, store: Path) -> ingest.DumpStore:
    """A step with a tensor of real numbers."""
    made.add(np.array([1, 3, 5], "<f4"), tensor_name(), step=0)
    ingest_directly(made.root, store, sketches=True)
    return ingest.open_store(store)


def test_damaged_histograms_count_as_missing(filled: ingest.DumpStore) -> None:
    prefix = filled.step(0, 0).commit.prefix
    filled.objects.put(f"{prefix}/{HISTOGRAM_TABLE.chunk}", b"damaged")
    ingest.consolidate(filled.url)
    cubes = filled.consolidated()
    assert cubes.table("with_histogram").tolist() == [[0]]
    assert cubes.table("without_histogram").tolist() == [[1]]
    assert cubes.table("tensors").tolist() == [[1]]
    with pytest.raises(UsageError, match="1 tensor has no histogram"):
        cubes.find("p99 > 1")


@pytest.fixture
def cubes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> ConsolidatedCubes:
    """Three steps of three ranks, in chunks of two ranks and four tensors."""
    monkeypatch.setattr(CubeGrid, "for_size", classmethod(lambda _cls, _ranks, _tensors: SMALL))
    objects = open_objects(resolve(tmp_path_factory.mktemp("view") / "run.zarr"))
    commit.ensure_root(objects)
    for step in range(3):
        for rank in range(3):
            put(objects, rank, step, NAMES[: 4 + step])
    once(objects)
    view = open_cubes(objects)
    assert view is not None
    return view


def job(objects: ObjectStore, name: str = "max") -> CutJob:
    return CutJob(objects.address, SMALL, name, 0, 0, 0)


@pytest.mark.parametrize("name", ["max", "zero_count", "row"])
def test_the_object_holds_what_those_of_the_steps_hold(name: str, cubes: ConsolidatedCubes) -> None:
    key = f"consolidated/by_tensor/{name}/c/0/0/0"
    before = cubes.objects.get(key)
    cubes.objects.delete(key)
    assert cut_by_tensor(job(cubes.objects, name)) == CutBlock(job(cubes.objects, name))
    assert cubes.objects.get(key) == before
    held = cubes.layouts.by_tensor[name].decode(before, key)
    for place in range(3):
        np.testing.assert_array_equal(held[place], cubes.cube(name, place)[:2, :4])


def test_damage_is_named_and_nothing_is_written(cubes: ConsolidatedCubes) -> None:
    cubes.objects.put("consolidated/max/c/1/0/0", b"nothing")
    cubes.objects.delete("consolidated/by_tensor/max/c/0/0/0")
    assert "consolidated/max/c/1/0/0" in cut_by_tensor(job(cubes.objects)).damage
    assert cubes.objects.get("consolidated/by_tensor/max/c/0/0/0") is None
