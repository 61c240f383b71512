"""Dumps and stores of somebody who means harm; and that a secret stays one."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ingest.environment import TOKEN_VARIABLE
from tests.cli import run
from tests.hostile import DUMP_CASES, STORE_CASES
from tests.npy_files import MadeDump, tensor_name
from tests.pipeline import plan_all
from workers.tasks import run as tasks

ROOT = Path(__file__).parents[2]
CASES = {case: outcome for cases in (DUMP_CASES, STORE_CASES) for case, (_, outcome) in cases.items()}
SECRET = "wJalrXUtnFEMI-planted-by-the-test"  # noqa: S105


def test_nothing_crashes_hangs_escapes_or_takes_memory(tmp_path: Path) -> None:
    """Each case in a process that has no more than 4 GiB of address space."""
    words = [sys.executable, "-m", "tests.hostile", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == CASES


def test_the_documented_table_is_what_was_tested() -> None:
    text = (ROOT / "docs/security.md").read_text()
    rows = re.findall(r"^\| (?:a dump|a store) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert dict(rows) == CASES


@pytest.mark.dask
def test_credentials_appear_nowhere(tmp_path: Path) -> None:
    made, store = MadeDump(tmp_path / "dump"), tmp_path / "run.zarr"
    made.add(np.full(20, np.nan, "<f4"), tensor_name())
    env = {
        "AWS_ACCESS_KEY_ID": SECRET,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": SECRET,
        TOKEN_VARIABLE: SECRET,
        "DUMP_INGEST_LOG_FORMAT": "json",
    }
    said = [
        run(*words, env=env)
        for words in (
            ("ingest", made.root, "--store", store, "--json"),
            ("config", "show"),
            ("doctor", made.root, "--store", store),
        )
    ]
    # A store that cannot be reached: what its client says goes into the message.
    gone = {**env, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    said.append(run("ls", "s3://bucket/run.zarr", env=gone, code=1))
    assert all(SECRET not in output.stdout + output.stderr for output in said)
    for path in store.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_tasks_hold_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    made = MadeDump(tmp_path / "dump")
    made.add(np.ones(3, "<f4"), tensor_name())
    plans = plan_all(made.root, "s3://bucket/run.zarr")
    assert SECRET.encode() not in tasks.pack_steps(plans)
