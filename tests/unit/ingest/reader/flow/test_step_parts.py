"""Parameters and gradients follow from the types that dumps give, and not from words in names of modules."""

import pytest

from ingest.reader.operator_kinds import StepPart, parts_of
from workers.store.consolidated.blocks import TensorKey


@pytest.mark.parametrize(
    ("op_type", "op_name", "io", "part"),
    [
        ("Parameter", "up.b", "output", StepPart.PARAMETER),
        ("Gradient", "up.b", "output", StepPart.PARAMETER_GRADIENT),
        ("Gradient", "fc.weight", "output", StepPart.PARAMETER_GRADIENT),
        ("Gradient", "weight_net.output", "output", StepPart.GRADIENT),
        ("Module.Linear", "bias_net", "output", StepPart.ACTIVATION),
        ("Module.Upgrade", "upgrade", "output", StepPart.ACTIVATION),
        ("Functional.layer_norm", "norm.layer_norm.0", "kwargs.weight", StepPart.ACTIVATION),
        ("Module.bias", "grad.fc.bias", "output", StepPart.PARAMETER_GRADIENT),
        ("Module.k_proj", "step0/grad__param__attn.k_proj.bias", "output", StepPart.PARAMETER_GRADIENT),
        ("Module.weight", "layers.0.fc.weight", "output", StepPart.PARAMETER),
        ("Module.fc", "fc", "parameters.weight", StepPart.PARAMETER),
    ],
)
def test_what_a_tensor_is(op_type: str, op_name: str, io: str, part: StepPart) -> None:
    keys = [TensorKey("", "", "Parameter", "up.b", "output", 0), TensorKey("", "", op_type, op_name, io, 0)]
    assert parts_of(keys)[1] is part
