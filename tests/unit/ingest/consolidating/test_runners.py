"""Tasks run in threads of this process or on a cluster, in the same order and with the same results."""

from collections.abc import Iterator

import pytest
from distributed import Client

from ingest.consolidating.consolidator import Consolidator
from ingest.dispatch.runners import in_threads, on_cluster
from tests.cube_stores import assert_is_what_is_committed, put
from workers.store.consolidated.cubes import CubeGrid
from workers.store.objects import ObjectStore
from workers.tasks.consolidate import ConsolidateJob, UnknownTensors, consolidate


def jobs(objects: ObjectStore, steps: int) -> list[ConsolidateJob]:
    """Commit some steps, and return a task for each."""
    for step in range(steps):
        put(objects, 0, step)
    grid = CubeGrid.for_size(1, 10)
    return [ConsolidateJob(objects.address, "w", grid, 0, step, step, 0, ((0, 0),)) for step in range(steps)]


def test_threads_return_results_in_the_order_of_the_tasks(objects: ObjectStore) -> None:
    results = list(in_threads(consolidate, jobs(objects, 5)))
    assert [result.job.step for result in results] == list(range(5))
    # Nothing is on the axis yet, so each task names all its tensors.
    assert all(isinstance(result, UnknownTensors) and result.keys for result in results)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A cluster of two threads in this process."""
    with Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=":0") as client:
        yield client


def test_a_cluster_returns_what_threads_return(objects: ObjectStore, client: Client) -> None:
    tasks = jobs(objects, 40)  # more than there may be at once
    assert list(on_cluster(client)(consolidate, tasks)) == list(in_threads(consolidate, tasks))


def test_a_consolidator_takes_either(objects: ObjectStore, client: Client) -> None:
    jobs(objects, 3)
    with Consolidator(objects, on_cluster(client)) as consolidator:
        assert consolidator.once().appended == (0, 1, 2)
    assert_is_what_is_committed(objects)
