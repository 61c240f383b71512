"""Ranks that record into one directory: replicas, of which the one that drifts is named, and shards."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingest
from tests.pipeline import ingest_directly
from tests.torch_ranks import record_box, record_shards


@pytest.fixture(scope="module")
def shards(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001  (it must be there)
    directory = tmp_path_factory.mktemp("shards")
    record_shards(directory, 2)
    return directory


def test_shards_of_fsdp_are_recorded_as_each_rank_has_them(shards: Path, tmp_path: Path) -> None:
    """Parameters and reduced gradients bit for bit, their places, and where a bad record does harm first."""
    ingest_directly(shards / "run-dump", tmp_path / "run.zarr")
    store = ingest.open_store(tmp_path / "run.zarr")
    assert (store.ranks, store.steps) == ([0, 1], [0, 1])
    places = {rank: axes["dp_shard"] for rank, axes in store.coordinates().items()}
    assert {rank: (place.rank, place.size) for rank, place in places.items()} == {0: (0, 2), 1: (1, 2)}
    for rank in store.ranks:
        for step in store.steps:
            recorded = {
                tensor.op_name + (".grad" if tensor.op_type == "Gradient" else ""): tensor.read()
                for tensor in store.tensors(rank=rank, step=step)
                if tensor.op_type in ("Parameter", "Gradient") and "output.output" not in tensor.name
            }
            with np.load(shards / f"rank_{rank}_step_{step}.npz") as told:
                local = {name: told[name] for name in told.files if told[name].size}
            for name, values in local.items():
                np.testing.assert_array_equal(recorded[name], values, err_msg=f"{name} of rank {rank}")
    (weight,) = store.tensors("Parameter.1.weight.*", rank=0, step=0)
    assert weight.unsharded().shape == (7, 4)
    # `fully_shard` gives modules other classes.
    assert {tensor.op_type for tensor in store.tensors("Module.*")} == {
        *("Module.Root", "Module.Linear", "Module.GELU", "Module.Sequential")
    }
    origin = ingest.origin(store)
    assert (origin.op_type, origin.op_name, origin.rank, origin.step) == ("Module.Root", "0", 1, 1)
    audit = ingest.audit(store)
    proved = {share.kind: share.tensors for share in audit.coverage if share.is_proved}
    assert not audit.failures
    assert proved["linear"] == 2 * 2 * 3


def test_placements_of_dtensors_are_told(shards: Path, tmp_path: Path) -> None:
    """`layout` takes from the dump what is cut, replicated or not yet added up, and joins pieces by it."""
    ingest_directly(shards / "tensor-parallel", tmp_path / "run.zarr")
    store = ingest.open_store(tmp_path / "run.zarr")
    placed = {kind.name: (kind.placement, kind.why) for kind in ingest.layout(store).kinds}
    expected = {
        "Parameter.0.weight.output.0": "tp: shard 0",
        "Parameter.0.bias.output.0": "tp: shard 0",
        "Parameter.2.weight.output.0": "tp: shard 1",
        "Parameter.2.bias.output.0": "tp: replicated",
        "Gradient.2.weight.output.0": "tp: shard 1",
        "Module.Linear.0.output.0": "tp: shard 1",
        "Module.ReLU.1.output.0": "tp: shard 1",
        "Module.Linear.2.output.0": "tp: partial sum",
    }
    assert {name: placed[name] for name in expected} == {
        name: (how, "told") for name, how in expected.items()
    }
    (piece,) = store.tensors("Module.Linear.2.output.0", rank=1)
    assert piece.attributes["tensor"] == {
        "placements": ["Partial(sum)"],
        "global_shape": [3, 5],
        "mesh_shape": [2],
        "mesh_dim_names": ["tp"],
        "mesh_coordinate": [1],
    }
    pieces = [store.tensors(piece.name, rank=rank)[0].read() for rank in store.ranks]
    np.testing.assert_array_equal(piece.unsharded().read(), pieces[0].astype(float) + pieces[1])


def test_all_ranks_of_a_black_box_save_the_steps_around_what_one_of_them_saw(
    torch: Any, tmp_path: Path
) -> None:
    del torch
    record_box(tmp_path, 2)
    ingest_directly(tmp_path / "run-dump", tmp_path / "run.zarr")
    store = ingest.open_store(tmp_path / "run.zarr")
    with_tensors = {
        rank: [step for step in store.steps if store.tensors("Module.*", rank=rank, step=step)[0].is_dumped]
        for rank in store.ranks
    }
    assert with_tensors == {0: [12, 13, 14, 15, 16, 17], 1: [12, 13, 14, 15, 16, 17]}
    assert store.steps == list(range(24))
    origin = ingest.origin(store)
    assert (origin.op_type, origin.rank, origin.step) == ("Module.Root", 1, 15)
