from collections.abc import Sequence
from pathlib import Path

import pytest

from ingest.service.offering import SharedTensors
from tests.pools import PooledRun, replicas, small_pools
from tests.wrapped_objects import WrappedObjects
from workers.errors import StoreUnavailable
from workers.model import StepKey
from workers.store.objects import ObjectStore


class Counted(WrappedObjects):
    """Counts the objects that are asked for."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked = 0
        self.is_down = False

    def get(self, key: str) -> bytes | None:
        if self.is_down:
            raise StoreUnavailable("down")
        self.asked += 1
        return super().get(key)

    def get_many(self, keys: Sequence[str]) -> dict[str, bytes]:
        self.asked += len(keys)
        return super().get_many(keys)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PooledRun:
    small_pools(monkeypatch)
    made = PooledRun(tmp_path)
    made.begin(2, replicas(0, shared=2, own=1))
    return made


def names(shared: SharedTensors, rank: int, step: int) -> set[str]:
    return {key.op_name for key in shared.of(StepKey(rank, step))}


WEIGHTS = {"net_weight0-op0", "net_weight1-op1"}


def test_a_rank_that_is_alone_reads_no_digests(tmp_path: Path) -> None:
    alone = PooledRun(tmp_path)
    alone.begin(1, replicas(0))
    shared = SharedTensors(Counted(alone.objects))
    assert shared.of(StepKey(0, 1)) == {}
    assert shared._known == {}


def test_a_damaged_view_and_a_store_that_is_away_share_nothing(run: PooledRun) -> None:
    objects = Counted(run.objects)
    shared = SharedTensors(objects)
    objects.is_down = True
    assert names(shared, 0, 1) == set()
    objects.is_down = False
    assert names(shared, 0, 1) == WEIGHTS
    (run.store / "consolidated/zarr.json").write_text("{")
    assert names(shared, 0, 2) == set()
