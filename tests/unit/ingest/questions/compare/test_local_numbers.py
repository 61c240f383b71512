"""Ranks that number their experts from 0 each."""

from pathlib import Path

import numpy as np

from ingest.questions.compare.rank_names import renumbered
from ingest.questions.compare.run import compare
from tests.sharded_net import LAYOUT, Dump, write
from workers.store.consolidated.blocks import TensorKey

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
