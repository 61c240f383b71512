"""In a short campaign, which is always the same, parts of the system die and nothing is lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: Four faults of four components within nine seconds.
SEED = "5230"
#: Faults from which the system recovers within seconds.
KINDS = (
    "kill watcher",
    "kill worker",
    "kill gateway",
    "kill OSD",
    "stop gateway",
    "503 SlowDown",
    "reset in mid-body",
    "answers lost",
    "second watcher",
)


@pytest.mark.dask
@pytest.mark.s3
@pytest.mark.campaign
@pytest.mark.timeout(600)  # takes a minute on an idle machine
@pytest.mark.usefixtures("needs_ceph")
def test_nothing_is_lost_in_a_short_campaign(tmp_path: Path) -> None:
    """The same command as `make chaos`."""
    results = tmp_path / "results.json"
    small = ("--ranks", "2", "--workers", "1", "--every", "3", "--minutes", "0.15", "--pause", "0.5")
    words = ("--seed", SEED, *small, "--json", str(results))
    only = [word for kind in KINDS for word in ("--only", kind)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *words, *only],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    output = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, output
    result = json.loads(results.read_text())
    assert result["good"], output
    assert result["verdict"]["steps"] == 2 * 3
    assert result["verdict"]["tensors"] > 100
    assert result["commits_seen"]
    assert len(result["faults"]) == 4
    assert "| **Lost** | **0** |" in done.stdout


def test_the_plan_is_printed_without_doing_anything() -> None:
    words = ("--seed", "8", "--minutes", "1", "--plan")
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0].split()[:5] == ["5.0", "s", "to", "14.6", "s"]
