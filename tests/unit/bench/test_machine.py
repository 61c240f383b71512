"""The description of the machine."""

import os
from pathlib import Path

from bench import machine


def test_the_machine_is_named(tmp_path: Path) -> None:
    described = machine.describe(tmp_path, None)
    assert described["cores"] == len(os.sched_getaffinity(0))
    assert described["disk"] != "unknown"
    assert described["tmpfs"] is None
    assert "numpy" in described["packages"]
    assert described["processor"] in machine.in_words(described)


def test_the_deepest_file_system_counts() -> None:
    assert machine.file_system(Path("/proc/self")) == "proc"
