"""PyTorch is imported when it is needed, and not before."""

import subprocess
import sys


def test_the_recorder_is_imported_without_pytorch() -> None:
    code = "import sys, ingest.recording; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
