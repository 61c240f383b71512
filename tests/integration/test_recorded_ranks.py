"""Replicas that record into one directory: the one that drifts is named."""

from pathlib import Path

import pytest

import ingest
from tests.pipeline import ingest_directly
from tests.torch_ranks import record_ranks


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
