"""A transformer and a CNN under what PyTorch brings: DistributedDataParallel, FSDP, and DTensor."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D401

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from proving.case import Cause, Fault

_GRADIENTS = ("Gradient.*.weight*", "Gradient.*.bias*")
_HIDDEN = "nothing in one run says what the user meant"

FAULTS = {
    "parameters replaced after DDP took them": Fault(_GRADIENTS, (Cause.MISSING_REDUCTION,)),
    "every other step without DDP": Fault(_GRADIENTS, (Cause.MISSING_REDUCTION,)),
    "no_sync is never left": Fault(_GRADIENTS, (Cause.MISSING_REDUCTION,)),
    # Dumped before DDP sends those of the first rank: what the second one has of its own batch.
    "statistics of BatchNorm not shared": Fault(
        ("Parameter.*running*", "bn*", "*.bn*"),
        (Cause.MISSING_REDUCTION, Cause.STALE),
        lag=2,
        hidden="DistributedDataParallel can be told not to share them, and many do",
    ),
    "optimizer made before FSDP": Fault(("Parameter.*",), (Cause.NOT_UPDATED,), lag=1),
    "gradients of FSDP never reduced": Fault(
        ("Parameter.*", *_GRADIENTS), (Cause.NO_GRADIENT, Cause.NOT_UPDATED, Cause.MISSING_REDUCTION), lag=1
    ),
    "output left as partial sum": Fault(("blocks.1.down", "blocks.1"), (Cause.MISSING_REDUCTION,)),
    # With and without the plan, each rank dumps its part of the gradient: the update shows what was reduced.
    "norms left out of the plan": Fault(
        ("Gradient.*ln1.*", "Gradient.*ln2.*", "Parameter.*ln?.*", "blocks.*.ln1", "blocks.*.ln2"),
        (Cause.MISSING_REDUCTION,),
        lag=1,
    ),
    "gradients clipped by local norms": Fault(
        ("Parameter.*",),
        (Cause.CLIPPED, Cause.FACTOR, Cause.WRONG_UPDATE),
        lag=1,
        hidden="the limit is not dumped",
    ),
    "same batch on all ranks": Fault(("model", "embed", "conv1"), (Cause.SAME_BATCH,), with_first=True),
    "other eps of one norm": Fault(("blocks.1.ln1",), (Cause.OPERATOR, Cause.FACTOR), hidden=_HIDDEN),
    # Dumped when the update ends, before it is lost: what is computed from it shows it.
    "a weight of one shard is stale": Fault(
        ("Parameter.blocks.1.up.weight*", "blocks.1.up"), (Cause.STALE, Cause.NOT_UPDATED), lag=1
    ),
}

WORDS, LENGTH, WIDTH, HEADS = 32, 8, 16, 4


@dataclass(frozen=True, slots=True)
class Options:
    kind: str = "ddp"
    """ddp, fsdp1, fsdp2, tp, sp, or fsdp2 tp."""
    net: str = "transformer"
    optimizer: str = "adamw"
    microbatches: int = 1
    clip: float = 0.0
    layers: int = 2
    shifted: bool = False
    """Each rank reads the share of the next one."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.act, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attend(self.ln1(x))
        return x + self.down(self.act(self.up(self.ln2(x))))

    def attend(self, x):
        q, k, v = (
            part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.q(x), self.k(x), self.v(x))
        )
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(context.transpose(1, 2).flatten(2))


class Language(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6)
        self.fc = nn.Linear(96, 5)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(torch.relu(self.bn2(self.conv2(x))).flatten(1))


def batch_of(options, job, step, number, *, replicas, place):
    """The part of the batch that this replica has."""
    generator = torch.Generator().manual_seed(1000 * job.run.seed + 10 * step + number)
    if options.net == "cnn":
        x, target = (
            torch.randn(8, 2, 8, 8, generator=generator),
            torch.randint(0, 5, (8,), generator=generator),
        )
    else:
        ids = torch.randint(0, WORDS, (4, LENGTH + 1), generator=generator)
        x, target = ids[:, :-1].contiguous(), ids[:, 1:]
    if options.shifted:
        place = (place + 1) % replicas
    if job.wrong("same batch on all ranks", step):
        place = 0
    return x.chunk(replicas)[place], target.chunk(replicas)[place].flatten()


def tensor_parallel(model, mesh, job, *, sequence):
    """Cut the layers of a transformer with DTensor."""
    between = Shard(1) if sequence else Replicate()
    for number, block in enumerate(model.blocks):
        column, row = (
            (lambda: ColwiseParallel(input_layouts=between)),
            RowwiseParallel(output_layouts=between),
        )
        plan = {"q": column(), "k": column(), "v": column(), "out": row, "up": column(), "down": row}
        if number == 1 and job.wrong("output left as partial sum"):
            plan["down"] = RowwiseParallel(output_layouts=Partial())
        if sequence and not job.wrong("norms left out of the plan"):
            plan |= {
                "ln1": SequenceParallel(use_local_output=True),
                "ln2": SequenceParallel(use_local_output=True),
            }
        parallelize_module(block, mesh, plan)
    top = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=between)}
    if sequence:
        top |= {"norm": SequenceParallel(use_local_output=True)}
    top["head"] = ColwiseParallel(input_layouts=between, output_layouts=Replicate())
    parallelize_module(model, mesh, top)
    return model


def parallel(model, options, job):
    """The model as it trains, the mesh, and how many replicas there are."""
    ranks = job.ranks
    if ranks == 1:
        return model, None, 1
    if options.kind == "ddp":
        shares = not job.wrong("statistics of BatchNorm not shared")
        wrapped = DistributedDataParallel(model, broadcast_buffers=shares)
        if job.wrong("parameters replaced after DDP took them"):
            for module in model.modules():
                for name, parameter in list(module.named_parameters(recurse=False)):
                    setattr(module, name, nn.Parameter(parameter.detach().double().float()))
        return wrapped, None, ranks
    if options.kind == "fsdp1":
        return (
            FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu")),
            None,
            ranks,
        )
    if options.kind == "fsdp2 tp":
        mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
        tensor_parallel(model, mesh["tp"], job, sequence=False)
        return _fully_sharded(model, mesh["dp"]), mesh, ranks // 2
    if options.kind == "fsdp2":
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
        return _fully_sharded(model, mesh), mesh, ranks
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    return tensor_parallel(model, mesh, job, sequence=options.kind == "sp"), mesh, 1


def _fully_sharded(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(job):
    """Train for some steps."""
    options = job.options(Options)
    torch.manual_seed(job.run.seed)
    model = Pictures() if options.net == "cnn" else Language(options.layers)
    if options.net != "cnn" and job.wrong("other eps of one norm"):
        model.blocks[1].ln1.eps = 1e-6
    kinds = {"adamw": lambda p: torch.optim.AdamW(p, lr=1e-2), "sgd": lambda p: torch.optim.SGD(p, lr=0.1)}
    early = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    trained, mesh, replicas = parallel(model, options, job)
    parameters = early if job.wrong("optimizer made before FSDP") else trained.parameters()
    optimizer = kinds[options.optimizer](parameters)
    place = mesh.get_local_rank("dp") if mesh is not None and "dp" in mesh.mesh_dim_names else job.rank
    place = place if replicas > 1 else 0
    kept = {}
    advance = "forward" if options.kind == "fsdp1" else "optimizer"
    recorded = job.recorded(trained, advance=advance, **({"mesh": mesh} if mesh is not None else {}))
    with recorded:
        for step in range(job.steps):
            optimizer.zero_grad()
            if options.kind == "fsdp2" and job.ranks > 1:
                trained.set_requires_gradient_sync(not job.wrong("gradients of FSDP never reduced", step))
            for number in range(options.microbatches):
                x, target = batch_of(options, job, step, number, replicas=replicas, place=place)
                called = trained
                if step % 2 and job.wrong("every other step without DDP", step):
                    called = model
                alone = trained.no_sync() if job.wrong("no_sync is never left", step) else nullcontext()
                with alone:
                    loss = functional.cross_entropy(called(x), target) / options.microbatches
                    loss.backward()
            if options.clip:
                clip(trained, options.clip, job, step)
            optimizer.step()
            if job.wrong("a weight of one shard is stale", step):
                _restore(trained, kept)
            kept = {name: value.detach().clone() for name, value in trained.named_parameters()}
    if job.ranks > 1:
        distributed.barrier()


def _restore(model, kept):
    for name, parameter in model.named_parameters():
        if "blocks.1.up.weight" in name and name in kept:
            with torch.no_grad():
                parameter.copy_(kept[name])


def clip(model, largest, job, step):
    """Clip the gradients; over shards, only their common norm is right."""
    if job.wrong("gradients clipped by local norms", step):
        local = [
            value.grad.to_local() if hasattr(value.grad, "to_local") else value.grad
            for value in model.parameters()
        ]
        factor = (largest / (nn.utils.get_total_norm(local) + 1e-6)).clamp(max=1)
        for value in local:
            value.mul_(factor)
    elif isinstance(model, FullyShardedDataParallel):
        model.clip_grad_norm_(largest)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), largest)
