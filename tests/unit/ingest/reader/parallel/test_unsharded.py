"""A tensor as a whole, put together from the pieces of ranks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ingest
from ingest.reader.mesh import Mesh
from ingest.reader.step import Step
from ingest.reader.unsharded import pieces_of, unshard
from tests.diverging import WEIGHT, replicas
from tests.pipeline import ingest_directly
from tests.sharded_net import LAYOUT, held_in_four_ways, write
from tests.statistics_runs import ingest_statistics
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


@dataclass(frozen=True)
class OnePiece:
    """The tensor of one rank, in memory."""

    values: npt.NDArray[np.float32]
    rank: int
    dims: str
    name: str = "x"
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def digest(self) -> str:
        return self.values.tobytes().hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return {"meta": {"dims": self.dims}}

    def elements(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return self.values.reshape(-1)[start:stop]


def test_what_is_told_of_three_axes_of_a_mesh() -> None:
    """Of four axes of a tensor, more ways are possible than are tried."""
    mesh = Mesh.parse("cp=2,ep=2,tp=2")
    places = [mesh.coordinates(rank) for rank in range(8)]
    whole = np.random.default_rng(0).normal(size=(2, 8, 4, 2)).astype(np.float32)
    chunks = [np.concatenate([whole[:, :2], whole[:, 6:]], axis=1), whole[:, 2:6]]
    parts = [np.split(chunk, 2, axis=2)[place] for chunk in chunks for _ in range(2) for place in range(2)]
    pieces: Any = [
        OnePiece(part, rank, "b s[cp:zigzag] h[tp] d # ep:replicated") for rank, part in enumerate(parts)
    ]
    assert np.array_equal(unshard(pieces, places).read(), whole)
    for dims, message in {
        "b s[cp:zigzag] h d[tp:partial] # ep:replicated": "",
        "b t[cp:zigzag] h[tp] d # ep:replicated": "zigzag 1 of each sequence",
        "b s[cp:zigzag] h d e[tp] # ep:replicated": "not among what its pieces allow",
        "b s[cp:zigzag] h[ep] d # tp:replicated": "ranks hold different bytes",
    }.items():
        told: Any = [OnePiece(piece.values, piece.rank, dims) for piece in pieces]
        if not message:
            assert unshard(told, places).shape == (2, 8, 2, 2)
            continue
        with pytest.raises(UsageError, match=message):
            unshard(told, places)


def test_pieces_of_which_only_statistics_were_dumped_are_not_taken_for_equal(tmp_path: Path) -> None:
    store = ingest_statistics(tmp_path, [{"Parameter.weight": 3.0}, {"Parameter.weight": 4.0}])
    (piece, _) = ingest.open_store(store).tensors("Parameter.weight*")
    with pytest.raises(UsageError, match="how the ranks hold it is not known"):
        piece.unsharded()


def test_every_rank_that_has_the_tensor_has_a_piece() -> None:
    made = replicas(ranks=range(3), steps=[1])
    made.put(3, 1, {"Adam.other.input.0": 1})  # without the tensor
    made.put(4, 2, {WEIGHT: 1})  # without the step
    step = made.store.step(1, 1)
    row = next(tensor.row for tensor in step.tensors() if tensor.name == WEIGHT)
    pieces, places = pieces_of(step, row)
    assert [own.rank for own in pieces] == [0, 1, 2]
    assert {own.op_name for own in pieces} == {"dense"}
    assert places == [{}, {}, {}]


def test_a_step_that_is_opened_by_itself_knows_no_other_ranks() -> None:
    step = replicas(ranks=range(2), steps=[1]).store.step(0, 1)
    with pytest.raises(UsageError, match="open the tensor through a store"):
        pieces_of(Step(step.objects, step.commit), 0)
