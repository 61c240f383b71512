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


def _trained(
    place: Path, script: str, program: str, options: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a script by a module of Python, with the recorder in the environment."""
    (place / "train.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", *program.split(), "train.py", "20"],
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DUMP_INGEST_RECORD": f"run-dump,{options}", **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_script_is_recorded_from_its_second_update_on(torch: Any, tmp_path: Path) -> None:
    del torch
    run = _trained(tmp_path, SCRIPT, "ingest.recording", "black_box=2,after=0,keep=1MiB")
    assert run.returncode == 1, run.stderr
    assert "done" not in run.stdout
    recorded = tmp_path / "run-dump/recorded/rank_0"
    assert recordings.steps(recorded) == list(range(1, 9))
    names = {line["op_name"] for line in recordings.lines(recorded, 1)}
    assert {"0", "2"} <= names
    assert "ZeroDivisionError: in the script" in recordings.mark(recorded, 8)["incident"]


RESTARTED = """
import os
import torch
from pathlib import Path
from torch import distributed, nn
restarts, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
# Gloo does not find its peers again in the store of the first attempt.
store = f"file://{Path.cwd()}/init-{restarts}"
distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
first, checkpoint = 0, Path("checkpoint.pt")
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step in range(first, 12):
    if restarts == 0 and step == 8 and rank == 1:
        raise ZeroDivisionError("in the script")
    optimizer.zero_grad()
    model(torch.full((2, 4), float(step))).square().mean().backward()
    optimizer.step()
    if step == 4 and rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 5}, checkpoint)
distributed.destroy_process_group()
"""


def test_a_restart_by_torchrun_goes_on_with_the_steps_that_the_optimizer_counts(
    torch: Any,  # noqa: ARG001  (it must be there)
    tmp_path: Path,
) -> None:
    launched = "torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=1 -m ingest.recording"
    run = _trained(tmp_path, RESTARTED, launched, "black_box=2,after=1,keep=1MiB")
    assert run.returncode == 0, run.stderr
    for rank in (0, 1):
        (recorded,) = (tmp_path / "run-dump/recorded").glob(f"rank_{rank}.*")
        # The step behind the last update has the parameters that it made.
        assert recordings.steps(recorded) == list(range(1, 13))
        saved = [step for step in range(1, 9) if list((recorded / f"step_{step}").glob("*.safetensors"))]
        assert saved in ([6, 7, 8], [7, 8]), "of the first attempt"


def test_a_restart_is_not_recorded_if_nobody_knows_where_it_goes_on(
    torch: Any,  # noqa: ARG001  (it must be there)
    tmp_path: Path,
) -> None:
    run = _trained(tmp_path, SCRIPT, "ingest.recording", "black_box=2", TORCHELASTIC_RESTART_COUNT="1")
    assert "ZeroDivisionError: in the script" in run.stderr
    assert "nothing is recorded: the optimizer does not count its steps" in run.stderr
    assert not (tmp_path / "run-dump").exists()


def test_an_argument_that_does_not_exist_is_named() -> None:
    assert options_of("d,every=10,ring=rings") == ("d", {"every": 10, "ring": "rings"})
    with pytest.raises(UsageError, match="argument 'color'"):
        options_of("d,color=red")
