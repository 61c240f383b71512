"""Nets under DTensor, sequence parallelism, FSDP and by hand, over real process groups; with their layouts.

Every process runs all nets of one number of ranks, and writes the local parts of parameters, outputs and
gradients as `tests.sharded_net.LAYOUT` has them. The first one also writes what one process computes alone,
and how ranks hold each tensor, as `torch.distributed` says. Imports PyTorch in those processes.
"""

import json
import multiprocessing
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.stores import npy_bytes

NETS = ("mlp", "separate", "fused", "embedding", "experts", "convolution", "tied")
_PRELOADED = [
    "torch",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "tests.torch_parallel_nets",
]
_REPLICATED, _PARTIAL, _WHOLE = "replicated", "partial sum", "whole"


def run_ranks(directory: Path, ranks: int) -> dict[str, dict[str, str]]:
    """Run all nets on this many ranks; return by run and tensor how the ranks hold it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    processes = [context.Process(target=_run, args=(directory, rank, ranks)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * ranks
    told: dict[str, dict[str, str]] = json.loads((directory / f"told-{ranks}.json").read_text())
    return told


@dataclass
class _Recorded:
    """What one rank dumps of one run."""

    tensors: dict[str, Any] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, tensor: Any, told: str = _REPLICATED) -> None:
        """Add a tensor; what a DTensor says of its placement counts more than `told`."""
        if hasattr(tensor, "placements"):
            told = ", ".join(_placement(placement) for placement in tensor.placements)
            tensor = tensor.to_local()
        self.tensors[name] = tensor.detach().clone().numpy()
        self.told[name] = told

    def write(self, path: Path) -> None:
        """Write an archive of arrays."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for name, values in self.tensors.items():
                archive.writestr(f"{name}.npy", npy_bytes(np.ascontiguousarray(values)))


def _placement(placement: Any) -> str:
    if placement.is_replicate():
        return _REPLICATED
    if placement.is_partial():
        return _PARTIAL
    strided = type(placement).__name__ == "_StridedShard"
    return f"strided shard {placement.dim}" if strided else f"shard {placement.dim}"


def _run(directory: Path, rank: int, ranks: int) -> None:
    import torch  # deferred: only these processes have it for certain
    from torch import distributed  # deferred: the same

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init-{ranks}", rank=rank, world_size=ranks
    )
    told = {}
    for name, recorded in _runs(rank, ranks):
        recorded.write(directory / f"{name}-{ranks}" / f"rank{rank}" / "step0.npz")
        gathered: list[dict[str, str]] = [{} for _ in range(ranks)]
        distributed.all_gather_object(gathered, recorded.told)
        told[f"{name}-{ranks}"] = {key: value for held in gathered for key, value in held.items()}
    if rank == 0:
        (directory / f"told-{ranks}.json").write_text(json.dumps(told))
        for name in NETS if ranks == 2 else ():
            _alone(name).write(directory / f"{name}-one" / "rank0" / "step0.npz")
    distributed.barrier()
    distributed.destroy_process_group()


def _runs(rank: int, ranks: int) -> Iterator[tuple[str, _Recorded]]:
    """Yield each run by its name."""
    for name in ("mlp", "separate", "embedding"):
        yield f"{name}-tp", _tensor_parallel(name, ranks)
    yield "mlp-sp", _sequence_parallel(ranks)
    for name in ("mlp", "fused", "embedding", "convolution", "tied"):
        yield f"{name}-fsdp2", _fully_sharded(name, rank, ranks)
    for name in ("mlp", "convolution"):
        yield f"{name}-fsdp1", _flat_sharded(name, rank, ranks)
    for name in ("mlp", "embedding"):
        yield f"{name}-fsdp1-joined", _joined_flat(name, rank, ranks, each_module=False)
        yield f"{name}-fsdp1-joined-each", _joined_flat(name, rank, ranks, each_module=True)
    yield "fused-tp", _fused_by_hand(rank, ranks)
    yield "experts-ep", _experts_by_hand(rank, ranks)
    if ranks == 4:
        yield "mlp-fsdp2-tp", _two_dimensions(rank)


def _watch(net: Any, recorded: _Recorded, told: str) -> None:
    """Record the outputs of all modules without children."""
    for name, module in net.named_modules():
        if name and not list(module.children()):
            module.register_forward_hook(
                lambda _, __, output, name=name: recorded.add(f"out.{name}", output, told)
            )


def _train(net: Any, batch: Any, recorded: _Recorded, told: str = _REPLICATED) -> _Recorded:
    """Run one pass, and record everything."""
    for name, parameter in net.named_parameters():
        recorded.add(f"param.{name}", parameter)
    _watch(net, recorded, told)
    output = net(batch)
    recorded.add("out.net", output, told)
    output.square().mean().backward()
    for name, parameter in net.named_parameters():
        recorded.add(f"grad.param.{name}", parameter.grad)
    return recorded


def _alone(name: str) -> _Recorded:
    from tests.torch_parallel_nets import make  # deferred: it imports torch

    net, batch = make(name)
    recorded = _train(net, batch, _Recorded())
    if name == "fused":
        recorded.tensors["out.o.partial"] = recorded.tensors["out.o"]
    if name == "experts":
        recorded.tensors["out.partial"] = recorded.tensors["out.net"]
        recorded.tensors["out.router.gradient"] = recorded.tensors["grad.param.router.weight"]
    return recorded


def _tensor_parallel(name: str, ranks: int) -> _Recorded:
    from torch.distributed.device_mesh import init_device_mesh  # deferred: see above
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # deferred: see above
    from torch.distributed.tensor.parallel import (  # deferred: see above
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from tests.torch_parallel_nets import make  # deferred: it imports torch

    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    net, batch = make(name)
    column = ColwiseParallel(use_local_output=False)
    row = RowwiseParallel(use_local_output=False)
    embed = RowwiseParallel(input_layouts=Replicate(), use_local_output=False)
    plans: dict[str, dict[str, Any]] = {
        "mlp": {"up": column, "down": row},
        "separate": {"q": column, "k": column, "v": column, "o": row},
        "embedding": {
            "embed": embed,
            "head": ColwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    }
    parallelize_module(net, mesh, plans[name])
    for module in net.modules():
        for key, parameter in list(module.named_parameters(recurse=False)):
            if not hasattr(parameter, "placements"):
                module.register_parameter(
                    key, type(parameter)(distribute_tensor(parameter.data, mesh, [Replicate()]))
                )
    return _train(net, distribute_tensor(batch, mesh, [Replicate()]), _Recorded())


def _sequence_parallel(ranks: int) -> _Recorded:
    from torch.distributed.device_mesh import init_device_mesh  # deferred: see above
    from torch.distributed.tensor import Shard, distribute_tensor  # deferred: see above
    from torch.distributed.tensor.parallel import (  # deferred: see above
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    from tests.torch_parallel_nets import make  # deferred: it imports torch

    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    net, batch = make("mlp")
    plan = {
        "norm": SequenceParallel(use_local_output=False),
        "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    parallelize_module(net, mesh, plan)
    return _train(net, distribute_tensor(batch, mesh, [Shard(1)]), _Recorded())


def _fully_sharded(name: str, rank: int, ranks: int) -> _Recorded:
    from torch.distributed.device_mesh import init_device_mesh  # deferred: see above
    from torch.distributed.fsdp import fully_shard  # deferred: see above

    from tests.torch_parallel_nets import make  # deferred: it imports torch

    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    net, batch = make(name)
    fully_shard(net, mesh=mesh)
    return _train(net, batch.chunk(ranks)[rank], _Recorded(), "shard 0")


def _flat_sharded(name: str, rank: int, ranks: int) -> _Recorded:
    """Return a net under FSDP1: of each parameter, a rank has some of its elements, or none."""
    import torch  # deferred: see above
    from torch import distributed  # deferred: see above
    from torch.distributed.fsdp import FullyShardedDataParallel  # deferred: see above

    from tests.torch_parallel_nets import make  # deferred: it imports torch

    net, batch = make(name)
    sharded = FullyShardedDataParallel(net, use_orig_params=True, device_id=torch.device("cpu"))
    recorded = _Recorded()
    _watch(net, recorded, "shard 0")
    output = sharded(batch.chunk(ranks)[rank])
    recorded.add("out.net", output, "shard 0")
    output.square().mean().backward()
    shapes = {key: parameter.shape for key, parameter in make(name)[0].named_parameters()}
    for prefixed, parameter in sharded.named_parameters():
        key = prefixed.removeprefix("_fsdp_wrapped_module.")
        told = "flat shard" if len(shapes[key]) > 1 else "shard 0"
        recorded.add(f"param.{key}", parameter, told)
        owners: list[bool] = [False] * ranks
        distributed.all_gather_object(owners, parameter.grad is not None)
        if parameter.grad is not None:
            recorded.add(f"grad.param.{key}", parameter.grad, told if sum(owners) > 1 else _WHOLE)
    return recorded


def _joined_flat(name: str, rank: int, ranks: int, *, each_module: bool) -> _Recorded:
    """Return a net under FSDP1 without `use_orig_params`: all parameters of a unit are one flat parameter.

    Nothing is told of flat parameters, because no tensor of one process is their counterpart. With
    `each_module`, each module without children is a unit; else, the net is the only one.
    """
    import torch  # deferred: see above
    from torch.distributed.fsdp import FullyShardedDataParallel  # deferred: see above
    from torch.distributed.fsdp.wrap import always_wrap_policy  # deferred: see above

    from tests.torch_parallel_nets import make  # deferred: it imports torch

    net, batch = make(name)
    recorded = _Recorded()
    _watch(net, recorded, "shard 0")
    policy = always_wrap_policy if each_module else None
    sharded = FullyShardedDataParallel(
        net, use_orig_params=False, auto_wrap_policy=policy, device_id=torch.device("cpu")
    )
    output = sharded(batch.chunk(ranks)[rank])
    recorded.add("out.net", output, "shard 0")
    output.square().mean().backward()
    for key, parameter in sharded.named_parameters():
        recorded.tensors[f"param.{key}"] = parameter.detach().clone().numpy()
        recorded.tensors[f"grad.param.{key}"] = parameter.grad.numpy()
    return recorded


def _two_dimensions(rank: int) -> _Recorded:
    """Return the MLP with tensor parallelism over two ranks, and FSDP2 over two of these."""
    from torch.distributed.device_mesh import init_device_mesh  # deferred: see above
    from torch.distributed.fsdp import fully_shard  # deferred: see above
    from torch.distributed.tensor.parallel import (  # deferred: see above
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from tests.torch_parallel_nets import make  # deferred: it imports torch

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    net, batch = make("mlp")
    parallelize_module(net, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    recorded = _train(net, batch.chunk(2)[rank // 2], _Recorded(), f"shard 0, {_REPLICATED}")
    for name in ("out.up", "out.act"):
        recorded.told[name] = "shard 0, shard 2"
    for name, told in recorded.told.items():
        if "param.norm" in name:  # FSDP2 does not see the other dimension of the mesh
            recorded.told[name] = f"{told}, {_REPLICATED}"
        if "param.down.bias" in name:
            recorded.told[name] = f"shard 0, {_REPLICATED}"
    return recorded


def _fused_by_hand(rank: int, ranks: int) -> _Recorded:
    """Return attention as Megatron cuts it: each rank has some heads of queries, keys and values."""
    import torch  # deferred: see above
    from torch import distributed  # deferred: see above

    from tests.torch_parallel_nets import HEADS, WIDTH, make  # deferred: it imports torch

    net, batch = make("fused")
    recorded = _Recorded()
    weights = {name: parameter.detach() for name, parameter in net.named_parameters()}
    cut = {
        name: torch.cat([third.chunk(ranks)[rank] for third in weights[name].chunk(3)])
        for name in ("qkv.weight", "qkv.bias")
    }
    cut["o.weight"] = weights["o.weight"].chunk(ranks, 1)[rank].contiguous()
    cut["o.bias"] = weights["o.bias"]
    for parameter in cut.values():
        parameter.requires_grad_(requires_grad=True)
    each = WIDTH // ranks
    blocks = f"({each}+{each}+{each} per rank)"
    told = {"qkv.weight": f"blocks 0 {blocks}", "qkv.bias": f"blocks 0 {blocks}", "o.weight": "shard 1"}
    projected = batch @ cut["qkv.weight"].T + cut["qkv.bias"]
    q, k, v = (part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in projected.chunk(3, -1))
    scores = (q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5).softmax(-1)
    partial = (scores @ v).transpose(1, 2).flatten(2) @ cut["o.weight"].T
    output = partial.detach().clone()
    distributed.all_reduce(output)
    output = (output + cut["o.bias"].detach()).requires_grad_()
    for name, parameter in cut.items():
        recorded.add(f"param.{name}", parameter, told.get(name, _REPLICATED))
    recorded.add("out.qkv", projected, f"blocks 2 {blocks}")
    recorded.add("out.o", output)
    recorded.add("out.net", output)
    output.square().mean().backward()
    partial.backward(output.grad)
    for name, parameter in cut.items():
        if name != "o.bias":
            recorded.add(f"grad.param.{name}", parameter.grad, told[name])
    return recorded


def _experts_by_hand(rank: int, ranks: int) -> _Recorded:
    """Return a mixture of experts of which each rank has some, under the names of all."""
    import torch  # deferred: see above
    from torch import distributed  # deferred: see above

    from tests.torch_parallel_nets import EXPERTS, make  # deferred: it imports torch

    net, batch = make("experts")
    recorded = _Recorded()
    own = range(rank * EXPERTS // ranks, (rank + 1) * EXPERTS // ranks)
    gates = net.router(batch).softmax(-1)
    parts = []
    for number in own:
        expert = net.experts[number]
        recorded.add(f"param.experts.{number}.weight", expert.weight, _WHOLE)
        result = expert(batch)
        recorded.add(f"out.experts.{number}", result, _WHOLE)
        parts.append(gates[..., number : number + 1] * torch.relu(result))
    partial = torch.stack(parts).sum(0)
    recorded.add("param.router.weight", net.router.weight)
    recorded.add("out.router", net.router(batch))
    recorded.add("out.partial", partial, _PARTIAL)
    output = partial.detach().clone()
    distributed.all_reduce(output)
    output.requires_grad_()
    recorded.add("out.net", output)
    output.square().mean().backward()
    partial.backward(output.grad)
    recorded.add("out.router.gradient", net.router.weight.grad, _PARTIAL)
    distributed.all_reduce(net.router.weight.grad)
    recorded.add("grad.param.router.weight", net.router.weight.grad)
    for number in own:
        recorded.add(f"grad.param.experts.{number}.weight", net.experts[number].weight.grad, _WHOLE)
    return recorded
