"""`compare` between two stores on object storage, on a cluster."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from ingest.questions.compare.result import Verdict
from ingest.questions.compare.run import compare
from tests.servers.ceph import S3Bucket
from tests.servers.cluster import DaskCluster
from tests.stores import SMALL_GRID, MadeDump, ingest_directly, tensor_name

pytestmark = [pytest.mark.dask, pytest.mark.s3]


@pytest.fixture
def client(
    s3_cluster: DaskCluster, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """A client of workers that reach the object storage, as this process does."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    with Client(s3_cluster.address, set_as_default=False) as connected:
        yield connected


def test_two_stores_on_object_storage_are_compared_on_a_cluster(
    s3_bucket: S3Bucket, client: Client, tmp_path: Path
) -> None:
    """Workers read both sides themselves, and say what threads say of the dumps that these are of."""
    values = np.linspace(1, 2, 300, dtype=np.float32)
    sides = []
    for number in range(2):
        dump = MadeDump(tmp_path / f"dump{number}")
        for place in range(6):
            changed = values + np.float32(number * (place % 2))
            dump.add(changed, tensor_name(f"Add.net_Add-op{place}", time=1_795_220_037_870_000 + place))
        sides.append((dump.root, f"{s3_bucket.url}/run{number}.zarr"))
        ingest_directly(*sides[-1], SMALL_GRID)
    (dump_a, store_a), (dump_b, store_b) = sides

    comparison = compare(f"{store_a}@0,0", store_b, client=client)

    assert comparison.counts == {Verdict.EQUAL: 3, Verdict.DIFFERENT: 3}
    of_dumps = compare(dump_a, dump_b)
    assert [tensor.to_dict() for tensor in comparison.tensors] == [
        tensor.to_dict() for tensor in of_dumps.tensors
    ]
    assert [tensor.metrics and tensor.metrics.max_abs for tensor in comparison.tensors] == [
        pytest.approx(1)
    ] * 3
