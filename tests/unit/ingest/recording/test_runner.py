"""`python -m ingest.recording train.py` records a script that knows nothing of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingest.recording.__main__ import options_of
from tests import recordings
from workers.errors import UsageError

SCRIPT = """
import sys
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
other = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    other(torch.ones(1, 2))
    loss = nn.MSELoss()(model(torch.ones(2, 4)), torch.ones(2, 1))
    loss.backward()
    optimizer.step()
    if step == 7:
        raise ZeroDivisionError("in the script")
print("done", __name__)
"""


def test_a_script_is_recorded_from_its_second_update_on(torch: Any, tmp_path: Path) -> None:
    del torch
    (tmp_path / "train.py").write_text(SCRIPT)
    program = [sys.executable, "-m", "ingest.recording", "train.py", "20"]
    env = {**os.environ, "DUMP_INGEST_RECORD": "run-dump,black_box=2,after=0,keep=1MiB"}
    run = subprocess.run(
        program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 1, run.stderr
    assert "done" not in run.stdout
    recorded = tmp_path / "run-dump/recorded/rank_0"
    assert recordings.steps(recorded) == list(range(1, 9))
    names = {line["op_name"] for line in recordings.lines(recorded, 1)}
    assert {"0", "2"} <= names
    assert "ZeroDivisionError: in the script" in recordings.mark(recorded, 8)["incident"]


def test_an_argument_that_does_not_exist_is_named() -> None:
    assert options_of("d,every=10,ring=rings") == ("d", {"every": 10, "ring": "rings"})
    with pytest.raises(UsageError, match="argument 'color'"):
        options_of("d,color=red")
