"""Names that msProbe gives to files of tensors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.layouts.msprobe import parse_tensor_name


@pytest.mark.parametrize(
    ("stem", "op_type", "io", "slot"),
    [
        ("Functional.conv2d.0.forward|.input.1", "Functional.conv2d", "input", 1),
        ("Torch.cat.3.forward|.input.0.1", "Torch.cat", "input.0", 1),
        ("Torch.npu.swiglu.0.forward|.output.0", "Torch.npu.swiglu", "output", 0),
        ("VF.lstm.0.backward|.kwargs.bias", "VF.lstm", "kwargs.bias", -1),
        ("VF.lstm.0.forward|.kwargs.hx.1", "VF.lstm", "kwargs.hx", 1),
        ("Primitive.conv2d.Conv2D.0.forward|.input.0", "Primitive.Conv2D", "input", 0),
        ("Module.layers.1.Linear.forward.0|.output.0", "Module.Linear", "output", 0),
        ("Module.0.fc.Linear.backward.12|.input.0", "Module.Linear", "input", 0),
        ("Cell.fc.Dense.forward.0|.parameters.weight", "Cell.Dense", "parameters.weight", -1),
        ("Cell.fc.Dense.parameters_grad.0|.bias", "Cell.Dense", "parameters_grad.bias", -1),
        ("Module.fc.Linear.parameters_grad|.weight", "Module.Linear", "parameters_grad.weight", -1),
        ("my.name.0.debug|", "debug", "debug", -1),
        ("x_grad.2.debug|.1.0", "debug", "debug.1", 0),
        ("Aten.add.Tensor.4|.input_kwargs.alpha", "Aten.add.Tensor", "kwargs.alpha", -1),
        ("Aten.add.Tensor.4|.output", "Aten.add.Tensor", "output", -1),
        ("Cell.net.Net.forward.0|.input.0_float32_17", "Cell.Net", "input", 0),
    ],
)
def test_names_of_files_are_parsed(stem: str, op_type: str, io: str, slot: int) -> None:
    name = parse_tensor_name(stem.replace("|", ""))
    assert name is not None
    assert (name.op_type, name.op_name, name.io, name.slot) == (op_type, stem.partition("|")[0], io, slot)


def test_running_number_of_tensordump_is_the_order_and_names_the_type() -> None:
    name = parse_tensor_name("Cell.net.Net.forward.0.output.1_bfloat16_17")
    assert name is not None
    assert (name.sequence, name.declared_dtype) == (17, "bfloat16")


@given(
    st.text(max_size=40)
    | st.from_regex(r"[a-z]{1,3}(\.([a-z]{1,2}|\d{1,25}|forward|input|debug)){1,8}", fullmatch=True)
)
def test_any_name_is_parsed_or_not(stem: str) -> None:
    parse_tensor_name(stem)
