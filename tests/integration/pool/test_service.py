"""The whole service with the pool: a watcher that is restarted, and the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.api import consolidate
from ingest.service.one_shot import Report
from tests import checker
from tests.cli import run as cli_run
from tests.pools import RANKS, PooledRun, replicas, small_pools, values_of
from tests.servers.cluster import DaskCluster
from tests.services import ingest as ingest_service
from tests.stores import MadeDump, ingest_directly, tensor_name


def ingest_all(pooled: PooledRun, *, is_pooled: bool = True, **options: Any) -> Report:
    return ingest_service(pooled.dump, pooled.store, pool=is_pooled, grid=pooled.grid, **options)


def test_a_restarted_watcher_knows_what_is_committed_whatever_it_expects(pooled: PooledRun) -> None:
    for rank in range(RANKS):
        pooled.add(rank, 1, replicas(1)(rank))
    report = ingest_all(pooled)
    assert sorted(summary.key.step or 0 for summary in report.commits) == [1] * RANKS
    names = [pooled.commit(rank, 1).fingerprint for rank in range(RANKS)]
    assert all("-" in name for name in names)
    pooled.consolidate()  # now the view has the step itself
    for is_pooled in (True, False):
        assert ingest_all(pooled, is_pooled=is_pooled).commits == []
    assert [pooled.commit(rank, 1).fingerprint for rank in range(RANKS)] == names
    shutil.rmtree(pooled.store / "consolidated")
    assert ingest_all(pooled).commits == []
    assert pooled.is_whole()


def test_ranks_of_a_dump_share_from_the_first_step_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a view, and one more rank that shares nothing stays as it is."""
    small_pools(monkeypatch)
    made = PooledRun(tmp_path)
    for step in range(2):
        for rank in range(RANKS):
            made.add(rank, step, replicas(step)(rank))
        made.add(RANKS, step, {f"activation{number}": 9000 + 10 * step + number for number in range(4)})
    assert len(ingest_all(made).commits) == 2 * (RANKS + 1)
    for step in range(2):
        pools = [tuple(made.commit(rank, step).record.pool) for rank in range(RANKS)]
        assert pools == [pools[0]] * RANKS
        assert {path.split("/")[2] for path in pools[0]} == {path.split("/")[0] for path in made.pool(step)}
        assert not made.commit(RANKS, step).record.pool
    assert made.is_whole()
    assert ingest_all(made).commits == []


@pytest.mark.dask
def test_the_command_line(tmp_path: Path, cluster: DaskCluster) -> None:
    """At real sizes, and by default: 5 MiB of weights that both ranks share."""
    made = MadeDump(tmp_path / "dump")
    store = tmp_path / "run.zarr"

    def add(step: int) -> None:
        weights = np.random.default_rng(step).normal(size=5 * 2**18).astype(np.float32)
        for rank in range(2):
            made.add(weights, tensor_name("Mul.net_weight-op0", time=1 + step), step=step, rank=rank)
            made.add(values_of(2 * step + rank), tensor_name(time=2 + step), step=step, rank=rank)

    add(0)
    ingest_directly(made.root, store)
    consolidate(store)
    add(1)
    done = cli_run("ingest", "dump", "--store", str(store), "--scheduler", cluster.address, cwd=tmp_path)
    assert done.code == 0, done.stderr
    arrays = [tuple(record_of(store, rank, 1)["pool"]) for rank in range(2)]
    assert arrays[0] == arrays[1]
    assert len(arrays[0]) == 1
    assert record_of(store, 0, 0)["pool"] == {}
    checker.check(store, made.root)


def record_of(store: Path, rank: int, step: int) -> dict[str, Any]:
    leaf = json.loads((store / f"rank_{rank}/step_{step}/zarr.json").read_text())
    return dict(leaf["attributes"]["dump_ingest"])
