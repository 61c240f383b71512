"""The tree of the recorder, as a job that runs, died, or was tampered with leaves it."""

import json
from pathlib import Path
from typing import Any

import pytest

import ingest
from ingest.layouts.base import Description, Listing
from ingest.layouts.detect import find_dump
from ingest.layouts.recorder import STATISTICS_FILE, STEP_FILE
from ingest.steps.decide import CompletenessPolicy
from tests.pipeline import ingest_directly

STEP = "recorded/rank_1.tp_rank_1_of_2/step_8"
LINE: dict[str, Any] = {
    "op_type": "Module.Linear",
    "op_name": "fc",
    "io": "output",
    "slot": 0,
    "sequence": 3,
    "dtype": "bfloat16",
    "shape": [2, 2],
    "statistics": {"count": 4, "nan_count": 1, "mean": None, "min": -1.5},
}


def write(root: Path, *lines: Any, files: dict[str, bytes] | None = None) -> Path:
    step = root / STEP
    step.mkdir(parents=True)
    text = "".join(line if isinstance(line, str) else f"{json.dumps(line)}\n" for line in lines)
    (step / STATISTICS_FILE).write_text(text)
    for name, content in (files or {}).items():
        (step / name).write_bytes(content)
    return root


def described(root: Path) -> tuple[Listing, Description]:
    tree = find_dump(root)
    (listing,) = (listing for listing in tree.scan({}).listings if listing.files)
    return listing, tree.describe(listing)


@pytest.mark.parametrize("file", ["", "recorded-tensor-3.raw"])
def test_how_a_dtensor_lies_on_its_mesh_is_an_attribute(file: str, tmp_path: Path) -> None:
    """With elements and without."""
    dtensor = {
        "placements": ["Shard(0)"],
        "global_shape": [4, 2],
        "mesh_shape": [2],
        "mesh_dim_names": ["tp"],
        "mesh_coordinate": [1],
    }
    line = LINE | {"file": file, "dtensor": dtensor}
    dump = write(tmp_path / "dump", line, files={file: bytes(8)} if file else {})
    ingest_directly(dump, tmp_path / "run.zarr")
    (tensor,) = ingest.open_store(tmp_path / "run.zarr").tensors()
    assert tensor.attributes == {"tensor": dtensor}


def test_elements_count_instead_of_the_line_if_they_are_there(tmp_path: Path) -> None:
    header = json.dumps({"k": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    elements = len(header).to_bytes(8, "little") + header + b"\x80\x3f\x00\x40"
    with_file = LINE | {"file": "recorded-tensors-00000.safetensors", "key": "k"}
    lost = LINE | {"op_name": "lost", "file": "recorded-tensors-00001.safetensors", "key": "k"}
    dump = write(tmp_path / "dump", with_file, lost, files={"recorded-tensors-00000.safetensors": elements})
    (summary,) = ingest_directly(dump, tmp_path / "run.zarr")
    assert (summary.tensors, summary.statistics_only, summary.status) == (1, 1, "complete")
    tensors = ingest.open_store(tmp_path / "run.zarr").tensors()
    fc, lost_tensor = sorted(tensors, key=lambda tensor: tensor.op_name)
    assert (fc.op_name, fc.read().tolist(), fc.statistics.mean) == ("fc", [1, 2], 1.5)
    assert (lost_tensor.op_name, lost_tensor.statistics.nan_count) == ("lost", 1)


def test_a_step_is_unfinished_until_its_last_file_is_there(tmp_path: Path) -> None:
    root = write(tmp_path / "dump", LINE)
    listing, description = described(root)
    assert description.unfinished == f"{STEP}/{STATISTICS_FILE}"
    assert listing.layout == "recorder"
    (root / STEP / STEP_FILE).write_text('{"tensors":1}')
    assert described(root)[1].unfinished == ""
    assert CompletenessPolicy().quiet_s > 0


@pytest.mark.parametrize(
    "bad",
    [
        "not JSON\n",
        '{"op_type": "A"}\n',
        LINE | {"shape": [-1]},
        LINE | {"shape": [1] * 100},
        LINE | {"slot": -5},
        LINE | {"dtype": "float3"},
        LINE | {"sequence": 1 << 70},
        LINE | {"file": "../../other.npy"},
        LINE | {"statistics": {"mean": "nan"}},
    ],
)
def test_a_line_that_the_recorder_does_not_write_is_left_out_and_counted(bad: Any, tmp_path: Path) -> None:
    _, description = described(write(tmp_path / "dump", bad, LINE))
    assert [report.name.op_name for report in description.reported] == ["fc"]
    (problem,) = description.problems
    assert str(problem) == (
        f"{STEP}/{STATISTICS_FILE}: 1 of its lines are not those of the recorder, and are left out"
    )
