"""Answers after the tensors are gone, as people get them: an older store, a cluster, gc."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from ingest.settings import Settings
from tests.cli import run
from tests.gc_stores import age
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import ingest_directly
from tests.servers.cluster import DaskCluster
from workers.store import strict_json

RNG = np.random.default_rng(4)
WEIGHT = RNG.standard_normal((1400, 320)).astype(np.float32)
OTHER = WEIGHT.copy()
OTHER[7, 9] *= -1000
RULES = """
rules:
  - {name: channels, kind: condition, where: outlier_channels > 0, severity: warning}
  - {name: tail, kind: percentile, percent: 99.9, gt: 1.5, severity: warning}
  - {name: lossy, kind: cast, format: e4m3, underflow_gt: 0.0001, severity: warning}
  - {name: moved, kind: drift, distance_gt: 0.000001, severity: warning}
"""
NAMES = ("channels", "tail", "lossy", "moved")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A store without sketches: two ranks of three steps, of which one has an outlier from the second on."""
    dump, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    for step in range(3):
        for rank in range(2):
            values = OTHER if rank and step else WEIGHT
            dump.add(values, tensor_name(time=1), step=step, rank=rank)
            dump.add(values[:3], tensor_name(slot=1, time=2), step=step, rank=rank)
    ingest_directly(dump.root, store)
    return store


def answers(path: Path) -> dict[str, Any]:
    """Return by question every answer that sketches give."""
    store = ingest.open_store(path)
    condition = "outlier_channels > 0 and abs_p100 > 2"
    rules = path.with_name("rules.yml")
    rules.write_text(RULES)
    return {
        "precision": ingest.precision(store, formats=["e4m3", "nvfp4"]).to_dict(),
        "delayed": ingest.precision(store, scaling="delayed").to_dict(),
        "quantiles": ingest.quantiles(store).to_dict(),
        "outliers": ingest.outliers(store).to_dict(),
        "localize": ingest.localize(f"{path}@1,1", f"{path}@0,1").to_dict(),
        "where": [(tensor.rank, tensor.step) for tensor in store.tensors(where=condition)],
        "rules": ingest.test_rules(store, rules, rule=NAMES).to_dict(),
    }


@pytest.mark.dask
def test_a_cluster_adds_sketches_and_they_outlive_the_tensors(older: Path, cluster: DaskCluster) -> None:
    report = ingest.sketch(older, settings=Settings(scheduler=cluster.address))
    assert [(step.key.rank, step.key.step) for step in report.added] == [
        (rank, step) for step in range(3) for rank in range(2)
    ]
    age(older)
    before = answers(older)
    assert run("gc", older, "--tensors-around-anomalies", "0", "--apply").code == 0
    assert not ingest.open_store(older).step(0, 1).has_tensors
    assert strict_json.dumps(answers(older)) == strict_json.dumps(before)
    assert before["precision"]["without"] == before["quantiles"]["without"] == 0
    outliers = [odd for odd in before["outliers"]["positions"] if odd["kind"] == "outlier"]
    assert {(odd["axis"], *odd["positions"]) for odd in outliers} == {(0, 7), (1, 9)}
    assert before["where"] == [(1, 1), (1, 2)]
    (large,) = before["localize"]["tensors"]
    assert [along["runs"] for along in large["positions"]] == [[[7, 8]], [[9, 10]]]
    rules = {rule["rule"]: rule["findings"] for rule in before["rules"]["rules"]}
    assert rules == {"channels": 2, "tail": 12, "lossy": 6, "moved": 1}
