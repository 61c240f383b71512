"""Pairs are compared in threads or on a cluster, in batches."""

from typing import Any

import pytest
from distributed import Client

from ingest.questions.compare import compare
from ingest.questions.compare.runner import ClusterRunner, batched
from tests.servers.cluster import DaskCluster
from workers.arrays.dtypes import from_name
from workers.errors import ClusterError
from workers.tasks import compare as task
from workers.tasks.compare import Pair
from workers.tasks.operands import Operand


@pytest.mark.dask
def test_a_cluster_says_the_same(nan_log: str, cluster: DaskCluster) -> None:
    wanted = compare(f"{nan_log}@0,2", f"{nan_log}@1,2")
    with Client(cluster.address, set_as_default=False) as client:
        assert ClusterRunner(client).parts == 2
        found = compare(f"{nan_log}@0,2", f"{nan_log}@1,2", client=client)
    assert [one.to_dict() for one in found.tensors] == [one.to_dict() for one in wanted.tensors]


def pair(nbytes: int) -> Pair:
    """Return a pair of tensors whose payloads have this many bytes together."""
    operand = Operand("test", from_name("uint8"), (nbytes // 2,), nbytes // 2, None, b"", False, None)
    return Pair(operand, operand)


def test_batches_are_bounded_in_bytes_and_in_pairs() -> None:
    batches = list(batched([pair(task.WHOLE_NBYTES // 2)] * 5))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert [len(batch) for batch in batched([pair(0)] * 4500)] == [2000, 2000, 500]
    assert [len(batch) for batch in batched([pair(10), pair(3 * task.WHOLE_NBYTES), pair(10)])] == [1, 1, 1]
    assert list(batched([])) == []


def test_a_few_pairs_are_shared_among_all_that_could_be_busy() -> None:
    small = [pair(task.WHOLE_NBYTES // 16)] * 8
    assert len(list(batched(small, 1))) == 1
    assert len(list(batched(small, 8))) == 8


def test_a_worker_that_fails_is_an_error_of_the_cluster() -> None:
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        wrong: Any = [[object()]]
        with pytest.raises(ClusterError, match="a Dask worker failed: AttributeError"):
            list(ClusterRunner(client).run(wrong))
