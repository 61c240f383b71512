"""Ranks of `torch.distributed` with gloo, each a process that records. Imports PyTorch in those processes."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Sharding imports the compiler of PyTorch, which takes seconds: once for all ranks.
_PRELOADED = [
    *("torch", "torch.nn.parallel", "torch.distributed.fsdp", "torch._dynamo"),
    *("ingest.recording.record", "workers.arrays.compiled.kernel_objects"),
]


def record_shards(directory: Path, ranks: int) -> None:
    """Train a model sharded by FSDP2 for two steps; in the second, rank 1 has a bad record.

    Each rank also saves what it has of each parameter and of its gradient: `rank_{rank}_step_{step}.npz`.
    Then they train a model under tensor parallelism for one step, below `tensor-parallel`.
    """
    _run(_train_shards, directory, ranks, ranks)


def record_box(directory: Path, ranks: int) -> None:
    """Train replicas with a black box for 24 steps; in step 15, rank 1 has a bad record."""
    _run(_train_with_box, directory, ranks)


def _train_with_box(directory: Path, rank: int) -> None:
    import torch  # deferred: only these processes have it for certain
    from torch import nn  # deferred: the same
    from torch.nn.parallel import DistributedDataParallel  # deferred: the same

    import ingest  # deferred: this module is imported by processes that need none of it

    class Root(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.sqrt(x + 10)

    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), Root(), nn.Linear(8, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    with ingest.record(model, directory / "run-dump", black_box=4, keep="4MiB"):
        for step in range(24):
            batch = torch.randn(4, 4) - 1e6 * ((rank, step) == (1, 15))
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


def _run(train: Callable[..., None], directory: Path, ranks: int, *arguments: int) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    processes = [
        context.Process(target=_join, args=(train, directory, rank, ranks, *arguments))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * ranks


def _join(train: Callable[..., None], directory: Path, rank: int, ranks: int, *arguments: int) -> None:
    """Be one rank of the processes that train."""
    import torch  # deferred: only these processes have it for certain
    from torch import distributed  # deferred: the same

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init", rank=rank, world_size=ranks
    )
    torch.manual_seed(0)
    train(directory, rank, *arguments)
    distributed.destroy_process_group()


def _train(directory: Path, rank: int, drifting: int) -> None:
    import torch  # deferred: only these processes have it for certain
    from torch import nn  # deferred: the same
    from torch.nn.parallel import DistributedDataParallel  # deferred: the same

    import ingest  # deferred: this module is imported by processes that need none of it

    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    with ingest.record(model, directory / "run-dump"):
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
            if (rank, step) == (drifting, 1):
                with torch.no_grad():
                    net[2].bias[1] += 1e-3


def _train_shards(directory: Path, rank: int, ranks: int) -> None:
    import numpy as np
    import torch  # deferred: only these processes have it for certain
    from torch import nn  # deferred: the same
    from torch.distributed.device_mesh import init_device_mesh  # deferred: the same
    from torch.distributed.fsdp import fully_shard  # deferred: the same

    import ingest  # deferred: this module is imported by processes that need none of it

    class Root(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.sqrt(x + 10)

    model = nn.Sequential(Root(), nn.Linear(4, 7), nn.Sequential(nn.Linear(7, 8), nn.GELU()), nn.Linear(8, 4))
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp_shard",))
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    with ingest.record(model, directory / "run-dump", what="tensors"):
        for step in range(2):
            batch = torch.randn(4, 4)
            if (rank, step) == (1, 1):
                batch[2, 1] = -20
            optimizer.zero_grad()
            before = {
                name: value.to_local().detach().numpy().copy() for name, value in model.named_parameters()
            }
            model(batch).square().mean().backward()
            gradients = {
                f"{name}.grad": value.grad.to_local().detach().numpy()
                for name, value in model.named_parameters()
            }
            np.savez(directory / f"rank_{rank}_step_{step}.npz", **before, **gradients)
            optimizer.step()
    _train_tensor_parallel(directory, ranks)


def _train_tensor_parallel(directory: Path, ranks: int) -> None:
    """Record a step in which outputs are DTensors, too: cut, and not added up yet."""
    import torch  # deferred: only these processes have it for certain
    from torch import nn  # deferred: the same
    from torch.distributed.device_mesh import init_device_mesh  # deferred: the same
    from torch.distributed.tensor import Partial  # deferred: the same
    from torch.distributed.tensor.parallel import (  # deferred: the same
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    import ingest  # deferred: this module is imported by processes that need none of it

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))
    plan = {
        "0": ColwiseParallel(use_local_output=False),
        "2": RowwiseParallel(output_layouts=Partial(), use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    with ingest.record(model, directory / "tensor-parallel", what="tensors"):
        model(torch.randn(3, 4)).full_tensor().square().mean().backward()
