"""Functions that compute something are recorded; questions, new memory and optimizers are not."""

from pathlib import Path
from types import ModuleType
from typing import Any

import ingest
from tests import recordings


def recorded(make: Any, nets: ModuleType, torch: Any, directory: Path) -> list[str]:
    net = nets.Returns(make)
    with ingest.record(net, directory, of="functions") as recorder:
        net(torch.arange(4.0))
    lines = recordings.lines(recorder.directory, 0)
    return [f"{line['op_type']}.{line['op_name']}.{line['io']}.{line['slot']}" for line in lines]


def test_a_function_has_its_inputs_as_they_were_and_its_output(
    nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    def make(x: Any) -> Any:
        y = torch.empty_like(x)
        y[:] = x * 2
        y.add_(x).add_(1)
        return torch.nn.functional.softmax(y, dim=-1) + torch.zeros(4).sum()

    assert recorded(make, nets, torch, tmp_path) == [
        "Tensor.mul.model.mul.0.input.0",
        "Tensor.mul.model.mul.0.output.0",
        "Tensor.setitem.model.setitem.0.input.0",
        "Tensor.setitem.model.setitem.0.input.2",
        "Tensor.setitem.model.setitem.0.output.0",
        *(f"Tensor.add_.model.add_.{n}.{io}" for n, io in ((0, "input.0"), (0, "input.1"), (0, "output.0"))),
        *(f"Tensor.add_.model.add_.1.{io}" for io in ("input.0", "output.0")),
        "Functional.softmax.model.softmax.0.input.0",
        "Functional.softmax.model.softmax.0.output.0",
        "Tensor.sum.model.sum.0.input.0",
        "Tensor.sum.model.sum.0.output.0",
        *(f"Tensor.add.model.add.0.{io}" for io in ("input.0", "input.1", "output.0")),
    ]
