"""How a watcher ends: what it leaves behind is said, and can be taken first."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ingest.reader.catalog import open_catalog
from ingest.service.live_watcher import fetch_steps
from tests.cli import start
from tests.servers.process import free_port

pytestmark = pytest.mark.dask

#: Nothing is complete while the job may still write.
PATIENT = {"DUMP_INGEST_QUIET_S": "3600", "DUMP_INGEST_SETTLE_S": "3600", "DUMP_INGEST_DRAIN_S": "120"}


def test_a_backlog_is_told_with_its_size_and_an_exit_code(
    dump_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    dump = dump_copy("nan-log-2rank") / "dump"
    port = free_port()
    env = {**PATIENT, "DUMP_INGEST_METRICS": f"127.0.0.1:{port}"}
    with start("watch", dump, "--store", tmp_path / "run.zarr", env=env) as watcher:
        watcher.wait_until(lambda: watcher.events("watching"), timeout_s=60)
        watcher.wait_until(lambda: len(fetch_steps(f"http://127.0.0.1:{port}")) >= 6, timeout_s=60)
        assert watcher.terminate() == 4
    [stopped] = watcher.events("stopped")
    assert stopped["level"] == "warning"
    assert stopped["left_steps"] == 6
    assert stopped["left_bytes"] > 1000
    assert "dump-ingest ingest DUMP" in stopped["hint"]


def test_everything_that_is_there_is_taken_first_if_asked_for(
    dump_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    dump, store = dump_copy("nan-log-2rank") / "dump", tmp_path / "run.zarr"
    with start("watch", dump, "--store", store, "--finish", env=PATIENT) as watcher:
        watcher.wait_until(lambda: watcher.events("watching"), timeout_s=60)
        assert watcher.terminate(timeout_s=150) == 0
    [stopped] = watcher.events("stopped")
    assert (stopped["level"], stopped["left_steps"]) == ("info", 0)
    assert sum(step.key.step is not None for step in open_catalog(str(store)).select()) == 6
