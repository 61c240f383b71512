"""Why a step is not in the store yet: asked of a dump, and of the watcher that runs."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli import run, start
from tests.in_process import run_here
from tests.npy_files import MadeDump, npy_bytes
from tests.servers.cluster import DaskCluster
from tests.servers.process import free_port

pytestmark = pytest.mark.dask

WHOLE = npy_bytes(np.arange(100, dtype="<f4"))


def test_a_stuck_step_is_explained_by_the_dump_and_by_the_running_watcher(tmp_path: Path) -> None:
    """The worker is stopped, as on a host that hangs: only the watcher knows that its tasks are under way."""
    made, store, port = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr", free_port()
    made.add(WHOLE, rank=3, step=39)
    made.directory(40, rank=3)
    env = {"DUMP_INGEST_QUIET_S": "60", "DUMP_INGEST_METRICS": f"127.0.0.1:{port}"}

    def live(step: int) -> dict[str, Any]:
        (row,) = run_here(
            "watch", "--explain", "--from", f"http://127.0.0.1:{port}", "--json", "--step", step
        ).json
        return dict(row)

    with DaskCluster() as cluster:
        words = ("watch", made.root, "--store", store)
        with start(*words, "--scheduler", cluster.address, env=env) as watch:
            made.add(WHOLE, rank=3, step=40)
            watch.wait_until(lambda: watch.events("step_committed"), timeout_s=60)
            watch.wait_until(lambda: live(39)["phase"] == "committed", timeout_s=60, pause_s=0.3)
            assert live(40)["waits_for"] == "time"

            cluster.pause_worker()
            made.add(WHOLE, rank=3, step=41)
            watch.wait_until(lambda: live(40)["phase"] != "waiting", timeout_s=60, pause_s=0.3)
            stuck = live(40)
            assert (stuck["phase"], stuck["waits_for"], stuck["reason"]) == (
                "converting",
                "tasks",
                "0 of 1 tasks done",
            )
            # Who looks at the dump sees a step that is complete, and a store that does not have it.
            (row,) = run(*words, "--explain", "--json", "--step", 40, env=env).json
            assert (row["phase"], row["reason"]) == ("ready", "complete; a watcher takes it now")
            said = run("watch", "--explain", "--from", f"http://127.0.0.1:{port}", "--rank", 3).stdout
            assert [line.split()[:3] for line in said.splitlines()[1:]] == [
                ["3", "39", "committed"],
                ["3", "40", "converting"],
                ["3", "41", "waiting"],
            ]

            os.kill(cluster.pids["worker-0"], signal.SIGCONT)
            watch.wait_until(lambda: len(watch.events("step_committed")) == 2, timeout_s=60)
            watch.wait_until(lambda: live(40)["phase"] == "committed", timeout_s=60, pause_s=0.3)
            assert watch.terminate() == 4  # step 41 is still waited for
