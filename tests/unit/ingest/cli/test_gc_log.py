"""The log of removals, for processes without a terminal."""

import shutil
from pathlib import Path

from tests.cli import run, strict_json


def test_each_removal_is_a_line(nan_store: Path, tmp_path: Path) -> None:
    store = shutil.copytree(nan_store, tmp_path / "run.zarr")
    done = run("gc", store, "--keep-last", 2, "--apply")
    events = [strict_json(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [(event["event"], event["what"], event["rank"], event["step"]) for event in events] == [
        ("gc_removed", "step", 0, 1),
        ("gc_removed", "step", 1, 1),
    ]
    assert all(event["nbytes"] > 0 and event["why"] for event in events)
