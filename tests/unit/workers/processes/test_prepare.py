"""What a worker process does before its first task."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_a_worker_keeps_to_limits_and_loads_no_service() -> None:
    code = (
        "import os, sys\n"
        "from workers.host.resources import CpuLimits, throttle\n"
        "from workers.processes.worker import prepare\n"
        "prepare(CpuLimits(nice=7, share=0.5), 0.25)\n"
        "print(max(os.nice(0), 7) == os.nice(0), throttle._share, 'ingest' in sys.modules)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert said.split() == ["True", "0.25", "False"]
