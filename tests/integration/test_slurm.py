"""The Slurm scripts, run from beginning to end with a `srun` that has this machine for its only node."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from tests.servers.process import free_port, scrape
from tests.stores import DumpLibrary

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
#: The one of Slurm starts a command on each node, and passes signals on to it.
SRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do shift; done
echo "$@" >>"$SRUN_LOG"
SLURM_PROCID=0 exec "$@"
"""
SCONTROL = """\
#!/bin/bash
[[ "$1 $2" == "show hostnames" ]] && hostname
"""
#: A training job: keeps what others can see of the ingestion while it runs, and leaves a dump.
TRAIN = """\
set -e
until [[ -s $INGEST_TARGETS/dump-ingest-17.json ]]; do sleep 0.1; done
cp "$INGEST_TARGETS/dump-ingest-17.json" "$KEEP/targets.json"
cp dump-ingest-17.json "$KEEP/scheduler.json"
stat -c %a dump-ingest-17.tls >"$KEEP/modes"
ls dump-ingest-17.tls >"$KEEP/certificates"
for port in "$@"; do
    until python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/metrics')" 2>/dev/null; do
        sleep 0.2
    done
done
cp -r "$RECORDED" "$DUMP"
"""


class Scraper:
    """Asks for metrics all the time, as Prometheus does, while the `with` block runs."""

    def __init__(self, ports: Collection[int]) -> None:
        self.last = dict.fromkeys(ports, "")
        """The last answer of each port."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.5):
            for port in self.last:
                with suppress(OSError):
                    self.last[port] = scrape(port)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on one node."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    (programs / "scontrol").write_text(SCONTROL)
    for program in programs.iterdir():
        program.chmod(0o755)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DUMP_INGEST_", "AWS_", "DASK_"))}
    return {
        **inherited,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SRUN_LOG": str(tmp_path / "srun.log"),
        "USER": "trainer",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "INGEST_PREFIX": str(Path(sys.executable).parent.parent),
        "INGEST_SLURM": str(SCRIPTS),
        "INGEST_CPUS": "1",
        "INGEST_PORT": str(free_port()),
        "DUMP_INGEST_METRICS": f"127.0.0.1:{free_port()}",
        "DUMP_INGEST_CONSOLIDATOR_METRICS": f"127.0.0.1:{free_port()}",
        "DUMP_INGEST_SETTLE_S": "0",
        "DUMP_INGEST_POLL_S": "0.2",
        "INGEST_INTERFACE": "lo",
        "STORE": str(tmp_path / "run.zarr"),
    }


@pytest.mark.dask
@pytest.mark.slow
def test_a_job_leaves_its_whole_dump_in_the_store(
    job: dict[str, str], dumps: DumpLibrary, tmp_path: Path
) -> None:
    """Its last step is written just before it ends, and nothing runs on afterwards."""
    dump, kept, targets, scratch = (tmp_path / name for name in ("dump", "kept", "targets", "scratch"))
    for directory in (kept, targets, scratch):
        directory.mkdir()
    (tmp_path / "train.sh").write_text(TRAIN)
    first = int(job["INGEST_PORT"])
    ports = [
        first + 1,
        first + 4,
        *(int(job[f"DUMP_INGEST_{name}METRICS"][10:]) for name in ("", "CONSOLIDATOR_")),
    ]
    with Scraper(ports[2:]) as scraper:
        done = subprocess.run(
            [SCRIPTS / "train.sbatch"],
            env={
                **job,
                "DUMP": str(dump),
                "TRAIN": shlex.join(["bash", str(tmp_path / "train.sh"), *map(str, ports)]),
                "RECORDED": str(dumps["nan-log-2rank"] / "dump"),
                "KEEP": str(kept),
                "INGEST_TARGETS": str(targets),
                "INGEST_SCRATCH": str(scratch),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    store = tmp_path / "run.zarr"
    assert len(list(store.glob("rank_[01]/step_[123]/zarr.json"))) == 6
    assert (store / "consolidated").is_dir()
    # Nothing is left behind: no key, no address of a scheduler, and no targets that would be missed.
    assert list(tmp_path.glob("dump-ingest-17*")) == []
    assert [*targets.iterdir(), *scratch.iterdir()] == []
    assert json.loads((kept / "scheduler.json").read_text())["address"] == f"tls://127.0.0.1:{first}"
    assert (kept / "modes").read_text().split() == ["700"]
    assert (kept / "certificates").read_text().split() == ["ca.pem", "tls.key", "tls.pem"]
    host = socket.gethostname()
    assert {
        group["labels"]["job"]: group["targets"] for group in json.loads((kept / "targets.json").read_text())
    } == dict(
        zip(
            (f"dump-ingest-{role}" for role in ("scheduler", "worker", "watcher", "consolidator")),
            ([f"{host}:{port}"] for port in ports),
            strict=True,
        )
    )
    started = (tmp_path / "srun.log").read_text()
    assert [
        what for what in ("scheduler", "worker", "watch", "consolidate", "ingest") if what not in started
    ] == []
    assert "Traceback" not in done.stderr
    assert "is not a setting" not in done.stderr
    # Processes end when their last state was scraped: nothing waits any more, and what was found is told.
    watcher, consolidator = (scraper.last[port] for port in ports[2:])
    pending = re.findall(r"^dump_ingest_watcher_pending_steps\{.*\} (.*)$", watcher, re.MULTILINE)
    assert set(pending) == {"0.0"}
    # Steps 2 and 3 have NaN, and may be committed in either order.
    assert re.search(r'last_finding_step\{rank="1",rule="nan",severity="critical"\} [23]\.0', watcher)
    for rank in (0, 1):
        assert f'dump_ingest_consolidator_committed_step{{rank="{rank}"}} 3.0' in consolidator
    assert "dump_ingest_consolidator_newest_step 3.0" in consolidator


def test_the_epilog_takes_the_targets_of_one_job_away(tmp_path: Path) -> None:
    for number in (17, 18):
        (tmp_path / f"dump-ingest-{number}.json").touch()
    subprocess.run(
        [SCRIPTS / "epilog.sh"],
        env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "17", "INGEST_TARGETS": str(tmp_path)},
        check=True,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["dump-ingest-18.json"]
