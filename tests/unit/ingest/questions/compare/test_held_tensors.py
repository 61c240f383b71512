"""The tensors of all ranks of a step as one list, whatever numbers ranks give."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingest.questions.compare.calls import are_cut_into_other_calls
from ingest.questions.compare.held_tensors import HeldTensors, hold_together
from ingest.questions.compare.rank_names import renumbered, with_tied_weights
from ingest.questions.compare.run import compare
from ingest.questions.compare.selection import Selection
from ingest.questions.compare.sources import StepTensors, open_source
from ingest.reader.mesh import Mesh
from tests.dumps import unpack
from tests.sharded_net import LAYOUT, Array, Dump, write
from workers.arrays.digest import digest
from workers.store.consolidated.blocks import TensorKey

ONES, ZEROS = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)


def held(root: Path, *ranks: Dump, mesh: str = "") -> HeldTensors:
    source = open_source(Selection(str(write(root, [list(ranks)]))), layout=LAYOUT)
    places = {rank: Mesh.parse(mesh).coordinates(rank) for rank in range(len(ranks))} if mesh else {}
    return hold_together({key.rank: source.load(key) for key in source.keys}, places)


def in_step(root: Path, *ranks: Dump) -> dict[int, StepTensors]:
    """Return a step of ranks whose tensors have names such as `Parameter embed`, or `Embedding embed 1`."""

    def key(words: list[str]) -> TensorKey:
        return TensorKey("", "", words[0], words[1], "output", 0, occurrence=int(words[2]))

    source = open_source(Selection(str(write(root, [list(ranks)]))), layout=LAYOUT)
    steps = {}
    for step in map(source.load, source.keys):
        names = [own.op_name.removeprefix(".") for own in step.keys]
        digests = [digest(ranks[step.key.rank][name].tobytes()) for name in names]
        steps[step.key.rank] = replace(
            step,
            keys=[key([*name.split(" "), "0"]) for name in names],
            digests=np.frombuffer(b"".join(digests), np.uint8).reshape(len(names), -1),
        )
    return steps


TIED = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_copies_of_a_tied_weight_have_one_name(tmp_path: Path) -> None:
    stages: tuple[Dump, Dump] = (
        {"Parameter embed.weight": TIED, "Gradient embed.weight": TIED},
        {"Parameter head.weight": TIED, "Gradient head.weight": -TIED, "Linear head": TIED},
    )
    whole = in_step(tmp_path / "b", stages[0])
    ranks = with_tied_weights(in_step(tmp_path / "a", *stages), whole)
    names = {(key.op_type, key.op_name) for key in ranks[1].keys}
    assert names == {("Parameter", "embed.weight"), ("Gradient", "embed.weight"), ("Linear", "head")}


@pytest.mark.parametrize(
    ("head", "others"),
    [
        (TIED + 1, {}),  # not its bytes
        (TIED, {"Parameter head.weight": TIED}),  # known by this name
        (TIED, {"Parameter up.weight": TIED}),  # the bytes of two
    ],
)
def test_other_parameters_keep_their_names(head: Array, others: Dump, tmp_path: Path) -> None:
    first: Dump = {"Parameter embed.weight": TIED, **others}
    ranks = in_step(tmp_path / "a", first, {"Parameter head.weight": head})
    assert {key.op_name for key in with_tied_weights(ranks, in_step(tmp_path / "b", first))[1].keys} == {
        "head.weight"
    }


@pytest.mark.parametrize(
    ("calls_of_ranks", "is_other"),
    [
        ([[[0], [1]], [[2], [3]]], True),  # each replica cuts its own share
        ([[[0], [2]], [[1], [3]]], False),
        ([[[0], [1]], [[2], [4]]], False),  # other samples
        ([[[0, 1], [2, 3]]], False),
    ],
)
def test_micro_batches_of_other_samples_are_known_by_their_tokens(
    calls_of_ranks: list[list[list[int]]], *, is_other: bool, tmp_path: Path
) -> None:
    def tokens(calls: list[list[int]]) -> Dump:
        return {
            f"Embedding embed {number}": np.repeat(np.array(samples)[:, None], 5, axis=1)
            for number, samples in enumerate(calls)
        }

    ranks = in_step(tmp_path / "a", *map(tokens, calls_of_ranks))
    whole = in_step(tmp_path / "b", tokens([[0, 1], [2, 3]]))
    assert are_cut_into_other_calls(ranks, whole) is is_other
    assert are_cut_into_other_calls(whole, ranks) is is_other


def test_without_activations_parameters_and_gradients_are_left(tmp_path: Path) -> None:
    ranks = in_step(
        tmp_path, {"Parameter a": ONES, "Linear a": ONES, "Gradient a": ONES, "Gradient a.output": ONES}
    )
    kept = hold_together(ranks, {}, without_activations=True)
    assert [(key.op_type, key.op_name) for key in kept.keys] == [("Parameter", "a"), ("Gradient", "a")]


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
    both = hold_together({key.rank: source.load(key) for key in source.keys if key.step == 0}, {})
    awaited = {both.keys[number].op_name for number in range(len(both.keys)) if both.is_awaited(number)}
    assert {"embed_output", "mlp_output.layer_id=0"} <= awaited
    assert "attn_q.layer_id=0" not in awaited


RNG = np.random.default_rng(9)
EXPERTS = [RNG.normal(size=(3, 4)).astype(np.float32) for _ in range(4)]


def named(numbers: range, first: int = 0) -> Dump:
    names = [f"layers.0.experts.{number - first}.weight" for number in numbers]
    return dict(zip(names, (EXPERTS[number] for number in numbers), strict=True))


def test_experts_are_found_by_their_values(tmp_path: Path) -> None:
    write(tmp_path / "b", [[named(range(4))]])
    write(tmp_path / "a", [[named(range(2, 4), 2), named(range(2))]])
    found = compare(tmp_path / "a", tmp_path / "b", layout=LAYOUT, keep_equal=True)
    assert found.verdict == "equal"
    assert len(found.tensors) == 4
    assert {row.held.ranks_a for row in found.tensors if row.held} == {(0,), (1,)}
    assert any("rank 0 has experts.2 and following" in note for note in found.notes)


def test_names_stay_where_values_do_not_show_it(tmp_path: Path) -> None:
    write(tmp_path / "b", [[named(range(4))]])
    other = {name: values + 1 for name, values in named(range(2)).items()}
    write(tmp_path / "a", [[other, other]])
    found = compare(tmp_path / "a", tmp_path / "b", layout=LAYOUT)
    assert not any("from 0 each" in note for note in found.notes)
    assert found.verdict == "different"


def test_other_numbers_of_a_name_stay() -> None:
    key = TensorKey("", "", "Module", "layers.1.experts.0.fc2", "output", 0)
    assert renumbered(key, {"experts.": 4}).op_name == "layers.1.experts.4.fc2"
    assert renumbered(key, {"layers.": 2}).op_name == "layers.3.experts.0.fc2"
