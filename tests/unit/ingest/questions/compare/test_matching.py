"""Which tensor is which: exactly, in another graph, under other numbers, by a mapping file or the model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ingest.layouts.cann import REFERENCE
from ingest.questions.compare.mapping import NameMapping, load_mapping
from ingest.questions.compare.matching import (
    MatchedBy,
    TensorPair,
    by_model,
    guessed_names,
    mapping_text,
    match_tensors,
    unmatched,
    without_numbers,
)
from ingest.questions.compare.result import GuessedName
from ingest.questions.compare.sources import StepTensors
from ingest.reader.context.ge_graph import ModelOutput
from workers.arrays.statistics import FIELDS
from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey


def key(text: str, *, graph: str = "0", net: str = "Net") -> TensorKey:
    op_type, op_name, io, slot = text.split("|")
    return TensorKey(net, graph, op_type, op_name, io, int(slot))


def tensors(*keys: TensorKey, shapes: list[tuple[int, ...]] | None = None) -> StepTensors:
    n = len(keys)
    return StepTensors(
        StepKey(0, 0),
        list(keys),
        ["float32"] * n,
        shapes or [(2,)] * n,
        [()] * n,
        np.zeros((n, 16), np.uint8),
        np.full((n, len(FIELDS)), np.nan),
        np.ones(n, bool),
        np.zeros(n, np.int64),
        np.arange(n),
        SimpleNamespace(attributes=lambda _: {}, model_output=lambda _: None),
    )


def mapping(path: Path, text: str) -> NameMapping:
    path.write_text(text)
    return load_mapping(path)


def pairs(found: list[TensorPair]) -> list[tuple[int, int, MatchedBy]]:
    return [(pair.a, pair.b, pair.matched_by) for pair in found]


CONV = [key(f"Conv2D|Default/net-Conv2D-op{n}|output|0") for n in range(4)]


def test_the_same_key_is_the_same_tensor_whatever_the_order() -> None:
    found = match_tensors(tensors(*CONV[:3]), tensors(CONV[2], CONV[0], CONV[1]))
    assert pairs(found) == [(0, 1, MatchedBy.EXACT), (1, 2, MatchedBy.EXACT), (2, 0, MatchedBy.EXACT)]


def test_a_graph_may_have_another_number() -> None:
    found = match_tensors(tensors(CONV[0]), tensors(key("Conv2D|Default/net-Conv2D-op0|output|0", graph="7")))
    assert pairs(found) == [(0, 0, MatchedBy.NAME)]


def test_other_op_numbers_are_matched_in_order_of_execution() -> None:
    renumbered = [key(f"Conv2D|Default/net-Conv2D-op{n}|output|0") for n in (31, 12)]
    found = match_tensors(tensors(*CONV[:2]), tensors(*renumbered))
    assert pairs(found) == [(0, 0, MatchedBy.ORDER), (1, 1, MatchedBy.ORDER)]
    assert not any(pair.ambiguous for pair in found)


def test_shapes_tell_apart_what_has_one_name_without_numbers() -> None:
    renumbered = [key(f"Conv2D|Default/net-Conv2D-op{n}|output|0") for n in (31, 32)]
    found = match_tensors(tensors(*CONV[:2], shapes=[(2,), (3,)]), tensors(*renumbered, shapes=[(3,), (2,)]))
    assert pairs(found) == [(0, 1, MatchedBy.ORDER), (1, 0, MatchedBy.ORDER)]


def test_what_might_be_another_one_is_said() -> None:
    renumbered = [key(f"Conv2D|Default/net-Conv2D-op{n}|output|0") for n in (31, 32)]
    a, b = tensors(*CONV[:3]), tensors(*renumbered)
    found = match_tensors(a, b)
    assert pairs(found) == [(0, 0, MatchedBy.ORDER), (1, 1, MatchedBy.ORDER)]
    assert all(pair.ambiguous for pair in found)
    assert unmatched(a, b, found) == ([2], [])


def test_another_order_that_digests_show_is_said() -> None:
    """As many on either side, but what is first here is second there."""
    renumbered = [key(f"Conv2D|Default/net-Conv2D-op{n}|output|0") for n in (31, 32, 33)]
    a, b = tensors(*CONV[:3]), tensors(*renumbered)
    a.digests[:, 0], b.digests[:, 0] = (1, 2, 3), (2, 1, 3)
    assert [pair.ambiguous for pair in match_tensors(a, b)] == [True, True, False]


def test_the_same_name_may_be_another_operator_where_numbers_were_given_anew() -> None:
    """`op1` is the second one in A, and the first one in B."""
    found = match_tensors(tensors(*CONV[:3]), tensors(*CONV[1:]))
    assert pairs(found) == [(0, 2, MatchedBy.ORDER), (1, 0, MatchedBy.EXACT), (2, 1, MatchedBy.EXACT)]
    assert all(pair.ambiguous for pair in found)


def test_runs_of_a_loop_that_are_missing_make_no_doubt_of_names() -> None:
    runs = [CONV[0]._replace(occurrence=n) for n in range(3)]
    assert not any(pair.ambiguous for pair in match_tensors(tensors(*runs), tensors(*runs[:2])))


def test_another_scope_type_or_slot_is_another_tensor() -> None:
    others = ["Conv2D|Default/other-Conv2D-op0|output|0", "Conv3D|Default/net-Conv2D-op0|output|0"]
    others += ["Conv2D|Default/net-Conv2D-op0|output|1", "Conv2D|Default/net-Conv2D-op0|input|0"]
    assert match_tensors(tensors(CONV[0]), tensors(*map(key, others))) == []


def test_a_single_one_of_another_shape_is_matched_so_that_the_shape_can_be_named() -> None:
    renumbered = key("Conv2D|Default/net-Conv2D-op31|output|0")
    found = match_tensors(tensors(CONV[0], shapes=[(2,)]), tensors(renumbered, shapes=[(9,)]))
    assert pairs(found) == [(0, 0, MatchedBy.ORDER)]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("Default_net-Mlp_MatMul-op12", "Default_net-Mlp_MatMul"),
        ("Default_net-Mlp_MatMul_12", "Default_net-Mlp_MatMul"),
        ("MatMul3", "MatMul"),
        ("Functional.linear.2.forward", "Functional.linear.forward"),
        ("Module.layers.0.Linear.forward.3", "Module.layers.0.Linear.forward"),
        ("Cell.fc.Dense.parameters_grad.0", "Cell.fc.Dense.parameters_grad"),
        ("", ""),
        ("12", ""),
    ],
)
def test_numbers_that_compilations_give_are_no_part_of_a_name(name: str, plain: str) -> None:
    assert without_numbers(name) == plain


def test_a_mapping_counts_before_equal_names(tmp_path: Path) -> None:
    names = mapping(tmp_path / "m.yaml", "pairs: [{a: 'X.a.output.0', b: 'X.b.output.0'}]")
    a, b = key("X|a|output|0"), key("X|b|output|0")
    found = match_tensors(tensors(a), tensors(a, b), names)
    assert pairs(found) == [(0, 1, MatchedBy.MAPPING)]


def test_a_mapping_that_leads_nowhere_changes_nothing(tmp_path: Path) -> None:
    names = mapping(tmp_path / "m.yaml", "pairs: [{a: '*', b: 'gone'}]")
    found = match_tensors(tensors(CONV[0]), tensors(CONV[0]), names)
    assert pairs(found) == [(0, 0, MatchedBy.EXACT)]


A = tensors(
    *map(
        key,
        (
            "MatMul|MatMul-op4|input|0",
            "MatMul|MatMul-op4|output|0",
            "Fused|Fused-op5|output|0",
            "Log|l*-op6|output|0",
        ),
    )
)
B = tensors(
    *map(
        key,
        (
            "MatMul|net_MatMul-op0|input|0",
            "MatMul|net_MatMul-op0|output|0",
            "ReLU|net_ReLU-op0|output|0",
            "Log|m?-op6|output|0",
        ),
    )
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


def step(*tensors: tuple[str, str, str, int], of_model: dict[int, ModelOutput] | None = None) -> Any:
    """Return the tensors of a step by type, name, `io` and slot, and what a graph says of their numbers."""
    keys = [TensorKey("", "", op_type, name, io, slot, 0) for op_type, name, io, slot in tensors]
    operands = SimpleNamespace(attributes=lambda _: {}, model_output=(of_model or {}).get)
    return SimpleNamespace(keys=keys, operands=operands)


MODEL = step(
    (REFERENCE, "conv1", "output", 0), (REFERENCE, "conv1", "output", 1), (REFERENCE, "fc", "output", 0)
)
DUMP = step(
    ("Conv2D", "conv1", "input", 0), ("Conv2D", "conv1", "output", 0), ("Conv2D", "conv1", "output", 1)
)


def of_model(a: Any, b: Any, numbers_a: range, numbers_b: range) -> list[tuple[int, int]]:
    return [(pair.a, pair.b) for pair in by_model(a, b, numbers_a, numbers_b)]


def test_outputs_are_paired_by_operator_and_slot() -> None:
    assert of_model(MODEL, DUMP, range(3), range(3)) == [(0, 1), (1, 2)]


def test_either_side_may_be_the_reference() -> None:
    assert of_model(DUMP, MODEL, range(3), range(3)) == [(1, 0), (2, 1)]


def test_two_references_are_not_paired_here() -> None:
    assert of_model(MODEL, MODEL, range(3), range(3)) == []


def test_the_graph_says_which_output_of_the_model_a_fused_one_is() -> None:
    fused = step(
        ("Conv2D", "conv1fc", "output", 0),
        ("Conv2D", "conv1", "output", 0),
        of_model={0: ModelOutput("fc", 0), 1: ModelOutput("conv1", 1)},
    )
    assert of_model(MODEL, fused, range(3), range(2)) == [(1, 1), (2, 0)]
    plain = step(("Relu", "fc", "output", 0), ("Conv2D", "conv1", "output", 0))
    assert of_model(plain, fused, range(2), range(2)) == [(0, 0)]
    assert of_model(fused, plain, range(2), range(2)) == [(0, 0)]
    assert of_model(fused, fused, range(2), range(2)) == [(0, 0), (1, 1)]


def test_equal_names_alone_do_not_make_one_output_of_the_model() -> None:
    assert of_model(DUMP, DUMP, range(3), range(3)) == []
