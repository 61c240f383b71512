"""One function spells the name of a tensor."""

from workers.store.consolidated.blocks import TensorKey
from workers.store.names import slot_name, tensor_name


def test_name_is_operator_and_slot() -> None:
    assert tensor_name("MatMul", "net-op0", "output", 1) == "MatMul.net-op0.output.1"
    assert slot_name("output", 1) == "output.1"


def test_repeated_dumps_are_numbered() -> None:
    assert tensor_name("MatMul", "net-op0", "input", 0, 2) == "MatMul.net-op0.input.0#2"
    assert slot_name("input", 0, 2) == "input.0#2"


def test_axis_of_tensors_has_the_same_names() -> None:
    key = TensorKey("net", "0", "Add", "a", "input", 3, 1)
    assert key.name == tensor_name(key.op_type, key.op_name, key.io, key.slot, key.occurrence)
