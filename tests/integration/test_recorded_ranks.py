"""Ranks that record into one directory: replicas, of which the one that drifts is named, and shards."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from tests.pipeline import ingest_directly
from tests.torch_ranks import record_ranks, record_shards


@pytest.mark.usefixtures("torch")
def test_divergence_names_the_replica_that_drifts(tmp_path: Path) -> None:
    record_ranks(tmp_path, 3, drifting=1)
    ingest_directly(tmp_path / "run-dump", tmp_path / "run.zarr")
    store = ingest.open_store(tmp_path / "run.zarr")
    assert (store.ranks, store.steps) == ([0, 1, 2], [0, 1, 2, 3])
    places = {rank: axes["dp"] for rank, axes in store.coordinates().items()}
    assert {rank: (place.rank, place.size) for rank, place in places.items()} == {
        0: (0, 3),
        1: (1, 3),
        2: (2, 3),
    }
    answer = ingest.divergence(store)
    assert [(odd.ranks, odd.first_step, odd.first.why) for odd in answer.odd] == [((1,), 2, "parameter")]
    assert str(answer.odd[0].first.name) == "Parameter.2.bias.output.0"
    # Each rank has data of its own; only what is recorded after the reduction agrees.
    gradients = {
        rank: {
            t.name: t.statistics
            for t in store.tensors("Gradient.*", rank=rank, step=0)
            if "output.output" not in t.name
        }
        for rank in store.ranks
    }
    assert len(gradients[0]) == 4
    assert gradients[0] == gradients[1] == gradients[2]


@pytest.mark.usefixtures("torch")
def test_shards_of_fsdp_are_recorded_as_each_rank_has_them(tmp_path: Path) -> None:
    """Parameters and reduced gradients bit for bit, their places, and where a bad record does harm first."""
    record_shards(tmp_path, 2)
    ingest_directly(tmp_path / "run-dump", tmp_path / "run.zarr")
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
            with np.load(tmp_path / f"rank_{rank}_step_{step}.npz") as told:
                shards = {name: told[name] for name in told.files if told[name].size}
            for name, values in shards.items():
                np.testing.assert_array_equal(recorded[name], values, err_msg=f"{name} of rank {rank}")
    (weight,) = store.tensors("Parameter.1.weight.*", rank=0, step=0)
    assert weight.unsharded("shard 0").shape == (7, 4)
    # `fully_shard` gives modules other classes.
    assert {tensor.op_type for tensor in store.tensors("Module.*")} == {
        *("Module.Root", "Module.Linear", "Module.GELU", "Module.Sequential")
    }
    origin = ingest.origin(store)
    assert (origin.op_type, origin.op_name, origin.rank, origin.step) == ("Module.Root", "0", 1, 1)
