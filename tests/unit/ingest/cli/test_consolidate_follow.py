"""`consolidate --follow` evaluates rules over steps and ranks as steps come, and says what they find."""

from pathlib import Path

import pytest

import ingest
from tests.cli import start
from tests.made_runs import MadeRun, numbers
from tests.npy_files import MadeDump
from tests.pipeline import ingest_directly


@pytest.mark.dask
def test_findings_are_logged_counted_and_stored_while_it_follows(tmp_path: Path) -> None:
    root, store = tmp_path / "dump", tmp_path / "run.zarr"
    made = MadeRun(MadeDump(root))
    for step in range(6):
        made.op("MatMul.Gradients_net-op0", (), [numbers(1, step / 10)], step=step)
    ingest_directly(root, store)
    env = {"DUMP_INGEST_CONSOLIDATOR_METRICS": ""}
    with start("consolidate", store, "--follow", "--poll", "0.1", env=env) as follower:
        follower.wait_until(lambda: len(list((store / "findings").glob("*.*"))) == 6, timeout_s=60)
        made.op("MatMul.Gradients_net-op0", (), [numbers(500, 0)], step=6)
        ingest_directly(root, store)
        follower.wait_until(lambda: follower.events("finding"), timeout_s=60)
        (row,) = follower.events("finding")
        assert follower.terminate() == 0
    assert (row["rule"], row["rank"], row["step"], row["level"]) == ("gradient_explosion", 0, 6, "warning")
    (finding,) = ingest.anomalies(ingest.open_store(str(store)), rule="gradient_explosion").findings
    assert finding.reason == row["reason"]
    assert finding.value == pytest.approx(500, rel=0.1)
