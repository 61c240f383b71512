"""One short campaign, always the same: parts of the system die, and nothing is lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: Four faults of four components within nine seconds.
SEED = "337"
#: Those from which the system is well again within seconds.
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
@pytest.mark.slow
@pytest.mark.timeout(600)  # a minute, on a machine that has nothing else to do
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
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    found = json.loads(results.read_text())
    assert found["good"], said
    assert found["verdict"]["steps"] == 2 * 3
    assert found["verdict"]["tensors"] > 100
    assert found["commits_seen"]
    assert len(found["faults"]) == 4
    assert "| **Lost** | **0** |" in done.stdout


@pytest.mark.parametrize("words", [("--only", "rain"), ("--minutes", "0"), ("--minutes", "soon")])
def test_a_mistake_is_told(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_plan_is_printed_without_doing_anything() -> None:
    words = ("--seed", "8", "--minutes", "1", "--plan")
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0].split()[:5] == ["5.0", "s", "to", "6.1", "s"]
