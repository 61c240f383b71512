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


def test_the_destination_of_a_collective_is_what_it_writes(
    nets: ModuleType, torch: Any, tmp_path: Path
) -> None:
    """Nobody has written it before; and what nobody has waited for is told from it."""
    distributed = torch.distributed

    def make(x: Any) -> Any:
        parts = [torch.full((4,), torch.nan)]
        distributed.all_gather(parts, x)
        distributed.all_gather(tensor_list=parts, tensor=x, async_op=True).wait()
        return parts[0]

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert recorded(make, nets, torch, tmp_path / "dump") == [
            "Torch.all_gather.model.all_gather.0.input.0",
            "Torch.all_gather.model.all_gather.0.output.0",
            "Torch.all_gather.model.all_gather.1.input.0",
            "Torch.all_gather.model.all_gather.1.output.elem.0",
        ]
    finally:
        distributed.destroy_process_group()
