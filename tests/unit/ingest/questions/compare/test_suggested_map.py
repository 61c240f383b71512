"""Guesses become a mapping file that `--map` takes as it is."""

from pathlib import Path

import numpy as np

from ingest.questions.compare.mapping import load_mapping
from ingest.questions.compare.matching import MatchedBy, TensorPair, guessed_names, mapping_text
from ingest.questions.compare.result import GuessedName
from ingest.questions.compare.step_tensors import StepTensors
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey


def side(*texts: str) -> StepTensors:
    parts = [text.split("|") for text in texts]
    keys = [TensorKey("Net", "0", op_type, name, io, int(slot)) for op_type, name, io, slot in parts]
    n = len(keys)
    return StepTensors(
        StepKey(0, 0),
        keys,
        ["float32"] * n,
        [(2,)] * n,
        [()] * n,
        np.zeros((n, 16), np.uint8),
        np.full((n, len(FIELDS)), np.nan),
        np.ones(n, bool),
        np.zeros(n, np.int64),
        np.arange(n),
        None,  # type: ignore[arg-type]  # no elements are read
    )


A = side(
    "MatMul|MatMul-op4|input|0",
    "MatMul|MatMul-op4|output|0",
    "Fused|Fused-op5|output|0",
    "Log|l*-op6|output|0",
)
B = side(
    "MatMul|net_MatMul-op0|input|0",
    "MatMul|net_MatMul-op0|output|0",
    "ReLU|net_ReLU-op0|output|0",
    "Log|m?-op6|output|0",
)
PAIRS = [TensorPair(n, n, MatchedBy.SCOPE) for n in range(4)]


def test_a_whole_operator_is_one_line() -> None:
    names = guessed_names(A, B, PAIRS)
    assert [(name.name_a, name.name_b) for name in names.values()] == [
        ("MatMul.MatMul-op4.*", "MatMul.net_MatMul-op0.*"),
        ("Fused.Fused-op5.output.0", "ReLU.net_ReLU-op0.output.0"),
        ("Log.l*-op6.output.0", "Log.m?-op6.output.0"),
    ]
    assert {name.how for name in names.values()} == {"scope"}


def test_a_part_of_an_operator_is_named_by_itself() -> None:
    (name,) = guessed_names(A, B, PAIRS[:1]).values()
    assert name.name_a == "MatMul.MatMul-op4.input.0"


def test_what_names_and_users_say_is_not_a_guess() -> None:
    certain = [TensorPair(0, 0, how) for how in (MatchedBy.EXACT, MatchedBy.MAPPING, MatchedBy.NAME)]
    assert guessed_names(A, B, certain) == {}


def test_the_file_is_accepted_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "map.yml"
    names = guessed_names(A, B, PAIRS)
    path.write_text(mapping_text(names.values(), {"a": "old.zarr", "b": "new\n- x.zarr"}))
    mapping = load_mapping(path)
    assert [mapping.name_in_b(key.name) for key in A.keys] == [key.name for key in B.keys]
    assert path.read_text().count("# guess: scope") == 3


def test_no_guesses_are_a_valid_file_too(tmp_path: Path) -> None:
    path = tmp_path / "map.yml"
    path.write_text(mapping_text([], {"a": "a", "b": "b"}))
    assert load_mapping(path).rules == ()


def test_odd_names_survive(tmp_path: Path) -> None:
    path = tmp_path / "map.yml"
    name = GuessedName('Log.a"b: {x}#\u00e9.output.0', "Log.\\1[y].output.0", "scope")
    path.write_text(mapping_text([name], {"a": "a", "b": "b"}))
    assert load_mapping(path).name_in_b(name.name_a) == name.name_b
