"""The files of a step, as other readers of safetensors and JSON see them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.layouts.recorder import STATISTICS_FILE, STEP_FILE, RecordedStep
from ingest.recording.snapshots import TensorSnapshot
from ingest.recording.writer import StepFiles
from workers.dump.model import TensorName


def snapshot(values: Any) -> TensorSnapshot:
    return TensorSnapshot(values.dtype.name, values.shape, values.nbytes, _elements=values.reshape(-1))


def name(number: int) -> TensorName:
    return TensorName(op_type="saved", op_name=f"t{number}", io="output", slot=0, sequence=number)


def test_elements_are_a_file_of_safetensors_with_aligned_offsets(tmp_path: Path) -> None:
    files = StepFiles(tmp_path / "step_0", 1 << 20)
    assert not files.add(name(0), snapshot(np.array([True])))
    assert not files.add(name(1), snapshot(np.arange(3.0)))
    files.finish(b"{}", RecordedStep(tensors=2))
    content = (tmp_path / "step_0" / "recorded-tensors-00000.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    assert json.loads(content[8 : 8 + length]) == {
        "1.saved.t1.output.0": {"dtype": "F64", "shape": [3], "data_offsets": [0, 24]},
        "0.saved.t0.output.0": {"dtype": "BOOL", "shape": [1], "data_offsets": [24, 25]},
    }
    assert content[8 + length :] == np.arange(3.0).tobytes() + b"\x01"


def test_a_line_is_written_before_the_elements_of_its_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = StepFiles(tmp_path / "step_0", 1)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ingest.recording.writer._write_safetensors", fail)
    with pytest.raises(OSError, match="No space"):
        files.add(name(0), snapshot(np.ones(3)))
    (line,) = (tmp_path / "step_0" / STATISTICS_FILE).read_text().splitlines()
    assert json.loads(line)["statistics"]["mean"] == 1
    assert not (tmp_path / "step_0" / STEP_FILE).exists()


def test_a_file_is_written_as_soon_as_it_is_large_enough(tmp_path: Path) -> None:
    files = StepFiles(tmp_path / "step_0", 20)
    assert [files.add(name(number), snapshot(np.ones(1))) for number in range(4)] == [
        False,
        False,
        True,
        False,
    ]
    files.flush()
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2
