"""Whole tensors from the pieces of the ranks of a store."""

from pathlib import Path

import numpy as np
import pytest

import ingest
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, held_in_four_ways, write
from workers.errors import UsageError

WHOLE = np.random.default_rng(8).normal(size=(6, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("unsharded")
    ranks = held_in_four_ways(WHOLE)
    write(root / "dump", [ranks])
    ingest_directly(root / "dump", root / "run.zarr", layout=LAYOUT)
    return str(root / "run.zarr")


def tensor(store: str, name: str, rank: int = 0) -> ingest.Tensor:
    (found,) = ingest.open_store(store).tensors(f"Module..{name}.output.0", rank=rank, step=0)
    return found


def test_shards_and_sums_as_they_are_said_to_be(store: str, tmp_path: Path) -> None:
    whole = tensor(store, "cut", rank=1).unsharded("shard 0")
    assert np.array_equal(np.asarray(whole), WHOLE)
    assert np.array_equal(whole[2:5, 1], WHOLE[2:5, 1])
    assert (whole.shape, whole.ranks, whole.why, len(whole)) == ((6, 4), (0, 1), "given", 6)
    assert "6x4 of ranks 0-1: shard 0" in repr(whole)
    assert np.allclose(tensor(store, "summed").unsharded("partial sum").read(), WHOLE)
    assert ingest.save_npy(whole, tmp_path / "whole.npy") == ""
    assert np.array_equal(np.load(tmp_path / "whole.npy"), WHOLE)


def test_what_all_ranks_or_one_rank_has_needs_no_word(store: str) -> None:
    same, alone = tensor(store, "same").unsharded(), tensor(store, "alone").unsharded()
    assert (str(same.placement), same.why) == ("replicated", "equal bytes")
    assert (str(alone.placement), alone.ranks) == ("whole", (0,))
    assert np.array_equal(same.read(), alone.read())


@pytest.mark.parametrize(
    ("name", "placement", "message"),
    [
        ("cut", "", "how the ranks hold it is not known; by the shapes of its pieces: .*shard 0"),
        ("cut", "shard 5", "cannot be held as 'shard 5'"),
    ],
)
def test_what_is_not_known_is_asked_for(store: str, name: str, placement: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tensor(store, name).unsharded(placement)
