"""A transformer in a pipeline of two stages (`torch.distributed.pipelining`), perhaps on several replicas."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN204, D101, D102, D401

from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional

from proving.case import Cause, Fault
from proving.programs.sharded import LENGTH, WIDTH, WORDS, Block

_HIDDEN = "nothing in one run says what the user meant"

FAULTS = {
    "gradients of tied weights not added up": Fault(
        ("Parameter.embed.weight*", "Parameter.head.weight*"),
        (Cause.MISSING_REDUCTION, Cause.WRONG_UPDATE),
        lag=1,
        hidden="two parameters begin equal, as copies do; that they are one is not dumped",
    ),
    "a layer left out": Fault(
        ("blocks.2", "blocks.2.*", "Parameter.blocks.2.*", "norm", "norm.input*"),
        (Cause.OPERATOR,),
        hidden=_HIDDEN,
    ),
    "layers loaded by their numbers in the stage": Fault(
        ("Parameter.blocks.2.*", "Parameter.blocks.3.*"),
        (Cause.WRONG_SHARD, Cause.STALE),
        hidden="layers begin as copies where a model is made deeper; which were meant is not dumped",
    ),
    # The schedule divides gradients behind the backward pass, after they are dumped.
    "loss not divided by the number of microbatches": Fault(
        ("model", "Gradient.*", "Parameter.*"), (Cause.FACTOR,), lag=1, hidden=_HIDDEN
    ),
    "replicas not averaged": Fault(
        ("Parameter.*", "Gradient.*"), (Cause.MISSING_REDUCTION, Cause.WRONG_UPDATE), lag=1
    ),
}


@dataclass(frozen=True, slots=True)
class Options:
    stages: int = 1
    tied: bool = False
    layers: int = 4
    optimizer: str = "adamw"
    samples: int = 4
    """Of all replicas."""


class Stage(nn.Module):
    """Some layers; the first stage also embeds, the last one also has the head."""

    def __init__(self, layers, *, first, last):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH) if first else None
        self.blocks = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self.norm = nn.LayerNorm(WIDTH) if last else None
        self.head = nn.Linear(WIDTH, WORDS, bias=False) if last else None

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def stage_of(options, job, place):
    """The part of the model that a place in the pipeline has, from a checkpoint of the whole model."""
    torch.manual_seed(job.run.seed)
    whole = Stage({number: Block() for number in range(options.layers)}, first=True, last=True)
    if options.tied:
        whole.head.weight = whole.embed.weight
    if options.stages == 1:
        return whole
    each = options.layers // options.stages
    numbers = list(range(place * each, (place + 1) * each))
    if job.wrong("a layer left out") and place:
        numbers = numbers[1:]
    own = Stage({number: Block() for number in numbers}, first=place == 0, last=place == options.stages - 1)
    saved = whole.state_dict()
    if place and job.wrong("layers loaded by their numbers in the stage"):
        for name in list(saved):
            part = name.split(".")
            if part[0] == "blocks" and int(part[1]) >= each:
                part[1] = str(int(part[1]) - each)
                saved[name] = whole.state_dict()[".".join(part)]
    own.load_state_dict({name: saved[name] for name in own.state_dict()})
    return own


def loss_of(logits, target):
    """The mean over the tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def train(job):
    """Train for some steps, each of two microbatches."""
    options = job.options(Options)
    replicas = job.ranks // options.stages
    mesh = place = None
    if job.ranks > 1:
        mesh = init_device_mesh("cpu", (replicas, options.stages), mesh_dim_names=("dp", "pp"))
        place, replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    model = stage_of(options, job, place)
    kinds = {"adamw": lambda p: torch.optim.AdamW(p, lr=1e-2), "sgd": lambda p: torch.optim.SGD(p, lr=0.1)}
    optimizer = kinds[options.optimizer](model.parameters())
    if job.ranks > 1:
        group = mesh.get_group("pp")
        stage = PipelineStage(model, place, options.stages, torch.device("cpu"), group=group)
        scale = not job.wrong("loss not divided by the number of microbatches")
        schedule = ScheduleGPipe(stage, 2, loss_fn=loss_of, scale_grads=scale)
    with job.recorded(model, advance="optimizer", **({"mesh": mesh} if mesh is not None else {})):
        for step in range(job.steps):
            generator = torch.Generator().manual_seed(1000 * job.run.seed + step)
            ids = torch.randint(0, WORDS, (options.samples, LENGTH + 1), generator=generator)
            x, target = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
            optimizer.zero_grad()
            if mesh is None:
                for part, right in zip(x.chunk(2), target.chunk(2), strict=True):
                    (loss_of(model(part), right) / 2).backward()
            else:
                x, target = x.chunk(replicas)[replica], target.chunk(replicas)[replica]
                schedule.step(x) if place == 0 else schedule.step(target=target)
                finish(model, mesh, options, job, step)
            optimizer.step()


def finish(model, mesh, options, job, step):
    """Add gradients up: of tied weights over the stages, of all over the replicas."""
    tied = model.embed if model.embed is not None else model.head
    if options.tied and not job.wrong("gradients of tied weights not added up", step):
        distributed.all_reduce(tied.weight.grad, group=mesh.get_group("pp"))
    for parameter in model.parameters():
        if not job.wrong("replicas not averaged", step):
            distributed.all_reduce(parameter.grad, group=mesh.get_group("dp"))
            parameter.grad /= distributed.get_world_size(mesh.get_group("dp"))
