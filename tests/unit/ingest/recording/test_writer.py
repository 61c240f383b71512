"""The writing thread gives every byte back, whatever happens."""

from pathlib import Path

import numpy as np

from ingest.layouts.recorder import RecordedStep
from ingest.recording.snapshots import TensorSnapshot
from ingest.recording.writer import Row, StepEnd, Writer
from workers.dump.model import TensorName


def row(step: int, number: int) -> Row:
    values = np.ones(8)
    snapshot = TensorSnapshot("float64", (8,), 64, _elements=values)
    return Row(step, TensorName("", "", "saved", f"t{number}", "output", 0, sequence=number), snapshot, 1000)


def record(writer: Writer, steps: int) -> None:
    writer.start()
    for step in range(steps):
        for number in range(3):
            assert writer.queue.reserve(1000, wait=True)
            writer.queue.put(row(step, number))
        writer.queue.put(StepEnd(step, RecordedStep(tensors=0, ended="E"), lambda: b"{}"))
    writer.close()


def test_after_a_failure_everything_is_dropped_and_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "step_0").mkdir()
    writer = Writer(tmp_path, 2500)
    record(writer, 3)
    assert isinstance(writer.failure, FileExistsError)
    assert writer.queue.held_nbytes == 0
    assert not (tmp_path / "step_1").exists()
