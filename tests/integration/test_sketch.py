"""Answers after the tensors are gone, as people get them: an older store, a cluster, gc."""

from pathlib import Path

import pytest

import ingest
from ingest.settings import Settings
from tests.cli import run
from tests.dumps import DumpLibrary
from tests.gc_stores import age
from tests.pipeline import ingest_directly
from tests.servers.cluster import DaskCluster


@pytest.mark.dask
def test_a_cluster_adds_histograms_and_they_outlive_the_tensors(
    dumps: DumpLibrary, tmp_path: Path, cluster: DaskCluster
) -> None:
    store = tmp_path / "run.zarr"
    ingest_directly(dumps["nan-log-2rank"] / "dump", store)
    report = ingest.sketch(store, settings=Settings(scheduler=cluster.address))
    assert [(step.key.rank, step.key.step) for step in report.added] == [
        (rank, step) for step in (1, 2, 3) for rank in (0, 1)
    ]
    age(store)
    question = ("precision", store, "-f", "e4m3", "--rows", "--json")
    before = run(*question).json
    assert run("gc", store, "--tensors-around-anomalies", "0", "--apply").code == 0
    assert not ingest.open_store(store).step(0, 1).has_tensors
    assert run(*question).json == before
    assert before["without"] == 0
