"""Dumps and stores of somebody who means harm; and that a secret stays one."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.hostile import DUMP_CASES, STORE_CASES

ROOT = Path(__file__).parents[2]
CASES = {case: outcome for cases in (DUMP_CASES, STORE_CASES) for case, (_, outcome) in cases.items()}


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
