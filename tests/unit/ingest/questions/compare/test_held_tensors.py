"""The tensors of all ranks of a step as one list."""

from pathlib import Path

import numpy as np

from ingest.questions.compare.held_tensors import HeldTensors, hold_together
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.sources import open_source
from ingest.reader.parallel.mesh import Mesh
from tests.dumps import unpack
from tests.sharded_net import LAYOUT, Dump, write

ONES, ZEROS = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)


def held(root: Path, *ranks: Dump, mesh: str = "") -> HeldTensors:
    source = open_source(Selection(str(write(root, [list(ranks)]))), layout=LAYOUT)
    places = {rank: Mesh.parse(mesh).coordinates(rank) for rank in range(len(ranks))} if mesh else {}
    return hold_together(0, {key.rank: source.load(key) for key in source.keys}, places)


def test_each_tensor_is_there_once_with_its_holders(tmp_path: Path) -> None:
    both = held(tmp_path, {"a": ONES, "b": ONES, "d": ONES}, {"a": ONES, "c": ZEROS, "d": ONES})
    names = [key.op_name.removeprefix(".") for key in both.keys]
    assert names == ["a", "c", "b", "d"]  # what only rank 1 has comes behind what it executed before
    assert [[holder.rank for holder in holders] for holders in both.holders] == [[0, 1], [1], [0], [0, 1]]
    assert both.as_step().shapes == [(2, 2)] * 4
    assert (both.dtype(1), both.shapes(0), both.is_dumped(3)) == ("float32", ((2, 2), (2, 2)), True)
    assert both.told(0) == {}


def test_places_on_the_mesh_make_a_grid(tmp_path: Path) -> None:
    ranks: list[Dump] = [{"a": ONES} for _ in range(4)]
    known = held(tmp_path / "known", *ranks, mesh="dp=2,tp=2").pieces(0)
    assert known.grid is not None
    assert known.grid.names == ("dp", "tp")
    assert held(tmp_path / "unknown", *ranks).pieces(0).grid is None


def test_a_reduction_that_was_not_awaited_is_told_by_the_file(tmp_path: Path) -> None:
    unpack("pt/parallel-layouts", tmp_path)
    source = open_source(Selection(str(tmp_path / "parallel-layouts/sglang-tp2")))
    both = hold_together(0, {key.rank: source.load(key) for key in source.keys if key.step == 0}, {})
    awaited = {both.keys[number].op_name for number in range(len(both.keys)) if both.is_awaited(number)}
    assert {"embed_output", "mlp_output.layer_id=0"} <= awaited
    assert "attn_q.layer_id=0" not in awaited
