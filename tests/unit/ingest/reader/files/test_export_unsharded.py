"""Whole tensors as files of safetensors."""

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import ingest
from ingest.reader import unsharded
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, held_in_four_ways, write

WHOLE = np.random.default_rng(8).normal(size=(6, 4)).astype(np.float32)
PLACEMENTS = {"cut": "shard 0", "summed": "partial sum", "low": "shard 1"}


def short(name: str) -> str:
    return name.removeprefix("Module..").removesuffix(".output.0")


def placement_of(name: str) -> str:
    return PLACEMENTS.get(short(name), "")


def load(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read a file as its format says, without the code under test."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    assert header.pop("__metadata__") == {"format": "pt"}
    types = {"F32": np.float32, "F64": np.float64, "BF16": ml_dtypes.bfloat16}
    assert end + max(row["data_offsets"][1] for row in header.values()) == len(data)
    return {
        short(name): np.frombuffer(data[end:][slice(*row["data_offsets"])], types[row["dtype"]]).reshape(
            row["shape"]
        )
        for name, row in header.items()
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    ranks = held_in_four_ways(WHOLE)
    write(root / "dump", [ranks, ranks])
    ingest_directly(root / "dump", root / "run.zarr", layout=LAYOUT)
    return root / "run.zarr"


def test_tensors_of_each_step_are_put_together_in_a_file(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsharded, "_PIECE_NBYTES", 5 * 8)  # parts that end within rows
    exported = ingest.export_unsharded(ingest.open_store(store), tmp_path / "out", placement=placement_of)
    assert not [whole.problem for whole in exported if whole.problem]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"step0.safetensors", "step1.safetensors"}
    tensors = load(tmp_path / "out" / "step1.safetensors")
    assert tensors.keys() == {"cut", "same", "summed", "alone"}
    assert all(np.allclose(values, WHOLE) for values in tensors.values())
    assert tensors["summed"].dtype == np.float64
    facts = {short(whole.name): whole.to_dict() for whole in exported if whole.step == 1}
    assert facts["cut"] == {
        "step": 1,
        "name": "Module..cut.output.0",
        "path": str(tmp_path / "out" / "step1.safetensors"),
        "ranks": [0, 1],
        "placement": "shard 0",
        "why": "given",
        "dtype": "float32",
        "shape": [6, 4],
        "nbytes": 96,
        "problem": "",
    }
    assert facts["same"]["why"] == "equal bytes"


def test_what_is_open_is_told_and_the_rest_is_written(store: Path, tmp_path: Path) -> None:
    exported = ingest.export_unsharded(
        ingest.open_store(store), tmp_path, 0, name="*s*", placement=lambda name: "shard 7" * ("sum" in name)
    )
    problems = {short(whole.name): whole.problem for whole in exported}
    assert problems["summed"].startswith("its pieces cannot be held as 'shard 7'; by their shapes:")
    assert load(tmp_path / "step0.safetensors").keys() == {"same"}
    (is_open,) = ingest.export_unsharded(ingest.open_store(store), tmp_path / "none", 0, name="*cut*")
    assert "how the ranks hold it is not known" in is_open.problem
    assert not list(tmp_path.glob("none/*"))


def test_a_damaged_piece_costs_its_tensor_alone(store: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(store, tmp_path / "run.zarr"))
    chunks = sorted((damaged / "rank_1" / "step_0").glob("*/tensors/float32/c/*"))
    for chunk in chunks:
        chunk.write_bytes(chunk.read_bytes()[:-4] + b"damn")
    exported = ingest.export_unsharded(
        ingest.open_store(damaged), tmp_path / "out", 0, placement=placement_of
    )
    assert {short(whole.name) for whole in exported if whole.is_damaged} == {"cut", "summed"}
    assert load(tmp_path / "out" / "step0.safetensors").keys() == {"same", "alone"}
    assert not list((tmp_path / "out").glob(".*"))


def test_no_two_tensors_have_one_name_in_the_file(tmp_path: Path) -> None:
    """The number of a slot that a graph dumps in a loop is not that of the same name in another graph."""
    for value, (graph, time) in enumerate([("0", 1), ("0", 2), ("0", 3), ("1", 9), ("2", 9)]):
        directory = tmp_path / "dump" / "rank_0" / "Net" / graph / "0"
        directory.mkdir(parents=True, exist_ok=True)
        np.save(directory / f"Add.op.0.0.{time}.output.0.DefaultFormat.npy", np.full(2, value, np.float32))
    ingest_directly(tmp_path / "dump", tmp_path / "run.zarr")
    exported = ingest.export_unsharded(ingest.open_store(tmp_path / "run.zarr"), tmp_path)
    written = load(tmp_path / "step0.safetensors")
    assert {name: values[0] for name, values in written.items()} == {
        "Add.op": 0,
        "Add.op.output.0#1": 1,
        "Add.op.output.0#2": 2,
        "Add.op.output.0#3": 3,
        "Add.op.output.0#4": 4,
    }
    assert [short(whole.name) for whole in exported] == list(written)
