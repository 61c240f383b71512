"""One place spells the names of tensors, and reads those of groups."""

import pytest

from workers.model import StepKey
from workers.store.consolidated.blocks import TensorKey
from workers.store.model import rank_named, slot_name, step_named, tensor_name


def test_name_is_operator_and_slot() -> None:
    assert tensor_name("MatMul", "net-op0", "output", 1) == "MatMul.net-op0.output.1"
    assert slot_name("output", 1) == "output.1"


def test_repeated_dumps_are_numbered() -> None:
    assert tensor_name("MatMul", "net-op0", "input", 0, 2) == "MatMul.net-op0.input.0#2"
    assert slot_name("input", 0, 2) == "input.0#2"


def test_axis_of_tensors_has_the_same_names() -> None:
    key = TensorKey("net", "0", "Add", "a", "input", 3, 1)
    assert key.name == tensor_name(key.op_type, key.op_name, key.io, key.slot, key.occurrence)


@pytest.mark.parametrize("number", [0, 7, 10, 999_999_999_999_999_999])
def test_the_names_of_groups_are_read_as_they_are_spelled(number: int) -> None:
    rank, step = StepKey(number, number).path.split("/")
    assert (rank_named(rank), step_named(step)) == (number, number)


@pytest.mark.parametrize("number", ["", "01", "-1", "1 ", "1\n", "\u0663", "1_0", "9" * 19])
def test_no_other_name_stands_for_a_number(number: str) -> None:
    assert rank_named(f"rank_{number}") is step_named(f"step_{number}") is None
