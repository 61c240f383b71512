"""One step of some ranks, added to the cubes."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from ingest.consolidating.consolidator import Consolidator
from tests.cube_stores import Job, Result
from tests.replicas import Replicas
from workers.arrays.statistics import NON_FINITE_FIELDS
from workers.model import StepKey
from workers.store import commit
from workers.store.consolidated.cubes import GROUP, TOTALS, CubeGrid
from workers.tasks.consolidate import (
    Consolidated,
    ConsolidateJob,
    ConsolidateResult,
    UnknownTensors,
    consolidate,
)

NAMES = [f"MatMul.net-op{number}.output.0" for number in range(3)]


@pytest.fixture
def replicas() -> Replicas:
    """Two ranks with one step of three tensors, and a third rank without the last of them."""
    replicas = Replicas()
    for rank in range(2):
        replicas.put(rank, 5, dict.fromkeys(NAMES, rank))
    replicas.put(2, 5, dict.fromkeys(NAMES[:2], 2))
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
    replicas.put(0, 5, dict.fromkeys(NAMES, 1))
    job = ConsolidateJob(
        replicas.objects.address, "writer", CubeGrid.for_size(1, 3), 0, 5, 0, 0, members=((0, 0),)
    )
    result = consolidate(job)
    assert isinstance(result, UnknownTensors)
    assert [key.name for key in result.keys] == NAMES
    assert not list(replicas.objects.sizes(GROUP))


def test_a_task_alone_puts_the_tensors_at_the_end_of_the_axis_itself(replicas: Replicas) -> None:
    (result,) = results(replicas)
    assert isinstance(result, Consolidated)
    assert [key.name for key in result.keys] == NAMES
    assert result.job.width == len(NAMES)


def test_ranks_are_reported_with_their_generation_and_totals(replicas: Replicas) -> None:
    *_, result = results(replicas)
    assert isinstance(result, Consolidated)
    commits, _ = commit.read_many(replicas.objects, [StepKey(rank, 5) for rank in range(3)])
    assert result.fingerprints == {key.rank: current.fingerprint for key, current in commits.items()}
    assert result.statuses == dict.fromkeys(range(3), "complete")
    assert {rank: totals[TOTALS.index("tensors")] for rank, totals in result.totals.items()} == {
        0: 3,
        1: 3,
        2: 2,
    }


def test_counts_of_a_tensor_that_a_rank_does_not_have_are_unknown(replicas: Replicas) -> None:
    *_, result = results(replicas)
    assert isinstance(result, Consolidated)
    counts = result.anomalies[NON_FINITE_FIELDS.index("nan_count")]
    places = [place for _, place in result.job.members]
    assert counts[places].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, -1]]


def test_a_task_that_runs_again_writes_the_same(replicas: Replicas) -> None:
    *_, result = results(replicas)
    before = {name: replicas.objects.get(f"{GROUP}/{name}") for name in replicas.objects.sizes(GROUP)}
    again = consolidate(result.job)
    assert isinstance(result, Consolidated)
    assert isinstance(again, Consolidated)
    assert np.array_equal(again.anomalies, result.anomalies)
    assert {name: replicas.objects.get(f"{GROUP}/{name}") for name in before} == before


def test_damaged_tables_cost_their_rank_alone(replicas: Replicas) -> None:
    for name in replicas.objects.sizes("rank_1/step_5"):
        if name.endswith("labels/c/0/0"):
            replicas.objects.put(f"rank_1/step_5/{name}", b"damaged")
    *_, result = results(replicas)
    assert isinstance(result, Consolidated)
    assert set(result.fingerprints) == {0, 2}
    assert "rank 1 step 5" in result.damaged[1]
