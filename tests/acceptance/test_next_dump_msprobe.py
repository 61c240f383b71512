"""The loop closed with msProbe on PyTorch: statistics of everything, then the elements of the suspects."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ingest
from tests.pipeline import ingest_directly

PROGRAM = Path(__file__).parent.parent / "msprobe_program.py"


@pytest.fixture
def train(torch_tools: None, tmp_path: Path) -> Iterator[Callable[[str], None]]:  # noqa: ARG001  (they must be there)
    """Return what trains with a configuration, given as text. One process imports PyTorch for all runs."""
    log = (tmp_path / "log").open("w+")
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=tmp_path,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(config: str) -> None:
            path = tmp_path / "config.json"
            path.write_text(config)
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "0\n", (tmp_path / "log").read_text()[-3000:]

        yield run
        process.stdin.close()
    log.close()


def config(task: str, directory: Path) -> str:
    of_task = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    return json.dumps(
        {"task": task, "dump_path": str(directory), "rank": [], "step": [1, 2], "level": "mix", task: of_task}
    )


def sizes(dump: Path) -> list[int]:
    return [path.stat().st_size for path in dump.rglob("*.pt")]


def test_msprobe_dumps_what_next_asked_for(train: Callable[[str], None], tmp_path: Path) -> None:
    """From statistics alone to the elements of the operator and its inputs, at a fraction of the bytes."""
    for task in ("statistics", "tensor"):
        train(config(task, tmp_path / task))
    assert not sizes(tmp_path / "statistics")
    ingest_directly(tmp_path / "statistics", tmp_path / "first.zarr")
    answer = ingest.next_dump(ingest.open_store(tmp_path / "first.zarr"))
    train(answer.config.text)
    assert ingest.check_dump_config(tmp_path / "config.json").findings == ()
    second = tmp_path / "statistics_next"
    written, full = sizes(second), sum(sizes(tmp_path / "tensor"))
    assert sum(written) < 0.02 * full
    assert 1 / 1.5 < answer.estimate.nbytes / sum(written) < 1.5
    assert 1 / 1.5 < answer.estimate.files / len(written) < 1.5
    assert 1 / 1.5 < answer.estimate.full_nbytes / full < 1.5
    ingest_directly(second, tmp_path / "second.zarr")
    origin = ingest.origin(ingest.open_store(tmp_path / "second.zarr"))
    assert (origin.op_type, origin.how, origin.step) == ("Torch.log", "born", 2)
    assert [tensor.io for tensor in origin.inputs] == ["input"]
    assert origin.why is not None
    assert origin.source is not None
    assert "the planted line" in origin.source.code
