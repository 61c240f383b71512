"""Runs of two gloo ranks in which one thing is wrong, cut by hand as Megatron does.

Tensor parallelism: three layers of a column-parallel and a row-parallel product, whose partial sums are
all-reduced. Data parallelism: the same net whole on each rank, with averaged gradients and Adam, for two
steps. Imports PyTorch in the processes of ranks.
"""

import multiprocessing
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.npy_files import npy_bytes

#: Which mistake, and what `layout` calls it and where it finds it.
MISTAKES = {
    "none, tensor parallel": None,
    "none, data parallel": None,
    "a rank loads the shard of another": None,  # outputs alone do not show it
    "a reduction is missing": ("missing reduction", "layers.1.fc2"),
    "every rank adds the bias": ("bias on every rank", "layers.1.fc2"),
    "a gradient is not averaged": None,  # when it is dumped: what the optimizer gets is
    "a rank has an old state": ("optimizer state out of step", "exp_avg.layers.1.fc1.weight"),
}
RANKS, LAYERS, WIDTH, BATCH, STEPS = 2, 3, 16, 6, 2


def run(directory: Path) -> None:
    """Run all of them, and write `{number of the mistake}/rank{rank}/step{step}.npz`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    processes = [context.Process(target=_rank, args=(directory, rank)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * RANKS


def _rank(directory: Path, rank: int) -> None:
    import torch  # deferred: only these processes have it for certain
    from torch import distributed  # deferred: the same

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init", rank=rank, world_size=RANKS
    )
    for number, mistake in enumerate(MISTAKES):
        runs = _data_parallel if _is_data_parallel(mistake) else _tensor_parallel
        for step, tensors in enumerate(runs(mistake, rank)):
            path = directory / str(number) / f"rank{rank}" / f"step{step}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(path, "w") as archive:
                for name, values in tensors.items():
                    array = np.ascontiguousarray(values.detach().numpy())
                    archive.writestr(f"{name}.npy", npy_bytes(array))
    distributed.barrier()
    distributed.destroy_process_group()


def _is_data_parallel(mistake: str) -> bool:
    return mistake.endswith("data parallel") or "averaged" in mistake or "state" in mistake


def _weights() -> dict[str, Any]:
    import torch  # deferred: see above

    generator = torch.Generator().manual_seed(5)
    shapes = {"fc1.weight": (2 * WIDTH, WIDTH), "fc2.weight": (WIDTH, 2 * WIDTH), "fc2.bias": (WIDTH,)}
    return {
        f"layers.{layer}.{name}": torch.randn(shape, generator=generator) / WIDTH**0.5
        for layer in range(LAYERS)
        for name, shape in shapes.items()
    }


def _tensor_parallel(mistake: str, rank: int) -> list[dict[str, Any]]:
    import torch  # deferred: see above
    from torch import distributed  # deferred: see above

    weights = _weights()
    dumped: dict[str, Any] = {}
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(6))
    for layer in range(LAYERS):
        name, is_wrong = f"layers.{layer}", layer == 1
        own = 0 if is_wrong and "shard" in mistake else rank
        up = weights[f"{name}.fc1.weight"].chunk(RANKS)[own]
        down = weights[f"{name}.fc2.weight"].chunk(RANKS, 1)[rank]
        bias = weights[f"{name}.fc2.bias"]
        dumped |= {f"param.{name}.fc1.weight": up, f"param.{name}.fc2.weight": down}
        dumped[f"param.{name}.fc2.bias"] = bias
        act = torch.tanh(x @ up.T)
        partial = act @ down.T
        dumped |= {f"{name}.act": act, f"{name}.fc2.partial": partial.clone()}
        total = partial + bias if is_wrong and "adds the bias" in mistake else partial.clone()
        if not (is_wrong and "reduction" in mistake):
            distributed.all_reduce(total)
        x = total if is_wrong and "adds the bias" in mistake else total + bias
        dumped[f"{name}.fc2"] = x
    return [dumped]


def _data_parallel(mistake: str, rank: int) -> list[dict[str, Any]]:
    import torch  # deferred: see above
    from torch import distributed  # deferred: see above

    parameters = {name: value.requires_grad_() for name, value in _weights().items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-2)
    steps = []
    for step in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
        for layer in range(LAYERS):
            up, down, bias = (
                parameters[f"layers.{layer}.{name}"] for name in ("fc1.weight", "fc2.weight", "fc2.bias")
            )
            x = torch.tanh(x @ up.T) @ down.T + bias
        optimizer.zero_grad()
        x.square().mean().backward()
        dumped = {}
        for name, parameter in parameters.items():
            is_skipped = "averaged" in mistake and name == "layers.1.fc2.weight"
            dumped[f"param.{name}"] = parameter.detach().clone()
            if not is_skipped:
                distributed.all_reduce(parameter.grad)
                parameter.grad /= RANKS
            dumped[f"grad.param.{name}"] = parameter.grad.clone()
            if is_skipped:  # the optimizer gets the average: only what was dumped shows it
                distributed.all_reduce(parameter.grad)
                parameter.grad /= RANKS
        before = {
            name: optimizer.state[parameter]["exp_avg"].clone() if optimizer.state[parameter] else None
            for name, parameter in parameters.items()
        }
        optimizer.step()
        for name, parameter in parameters.items():
            state = optimizer.state[parameter]["exp_avg"]
            is_old = "state" in mistake and rank == 1 and step == 1 and name == "layers.1.fc1.weight"
            dumped[f"exp_avg.{name}"] = before[name] if is_old else state.clone()
        steps.append(dumped)
    return steps
