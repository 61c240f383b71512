"""The Slurm scripts, run from beginning to end with a `srun` that has this machine for its only node."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dumps import DumpLibrary

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
#: The one of Slurm starts a command on each node, and passes signals on to it.
SRUN = """\
#!/bin/bash
while [[ $1 == --* ]]; do shift; done
echo "$@" >>"$SRUN_LOG"
SLURM_PROCID=0 exec "$@"
"""


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on one node."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    (programs / "srun").chmod(0o755)
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
        "DUMP_INGEST_METRICS": "",
        "DUMP_INGEST_CONSOLIDATOR_METRICS": "",
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
    dump = tmp_path / "dump"
    train = ["cp", "-r", str(dumps["nan-log-2rank"] / "dump"), str(dump)]
    done = subprocess.run(
        [SCRIPTS / "train.sbatch"],
        env={**job, "DUMP": str(dump), "TRAIN": shlex.join(train)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    store = tmp_path / "run.zarr"
    assert len(list(store.glob("rank_[01]/step_[123]/zarr.json"))) == 6
    assert (store / "consolidated").is_dir()
    assert not (tmp_path / "dump-ingest-17.json").exists()
    started = (tmp_path / "srun.log").read_text()
    assert [
        what for what in ("scheduler", "worker", "watch", "consolidate", "ingest") if what not in started
    ] == []
    assert "Traceback" not in done.stderr
    assert "is not a setting" not in done.stderr


@pytest.mark.parametrize("name", ["train.sbatch", "ingest.sbatch"])
def test_options_of_slurm_stand_before_the_first_command(name: str) -> None:
    """Slurm does not read them behind it."""
    lines = (SCRIPTS / name).read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert options
    assert max(options) < first
