"""Low-rank adapters on a frozen base."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import loading, mistake, returning, setting, visible

_B = "Parameter.layers.1.up.b Gradient.layers.1.up.b layers.1.up layers.1.up.b"

FAULTS = loop.FAULTS | {
    "both factors begin at zero": visible(
        loading("layers.1.up.a", torch.zeros_like),
        f"{_B} Gradient.layers.1.up.a Parameter.layers.1.up.a",
        Cause.NO_GRADIENT,
        Cause.NOT_UPDATED,
        lag=1,
    ),
    "base is trained, too": mistake(
        lambda model: model.layers[1].up.base.requires_grad_(), "*layers.1.up.base*", Cause.OPERATOR, lag=1
    ),
    "scaled twice": mistake(
        setting("layers.0.up", scale=4.0), "layers.0.up Gradient.layers.0.up.*", Cause.FACTOR, lag=1
    ),
    "adapter left out": visible(
        setting("layers.1.up", scale=0.0),
        f"{_B} Gradient.layers.1.up.a Parameter.layers.1.up.a",
        Cause.NO_GRADIENT,
        Cause.NOT_UPDATED,
        Cause.OPERATOR,
        lag=1,
    ),
    "base of another checkpoint": mistake(
        loading("layers.0.up.base.weight", lambda w: w.roll(1, 0)),
        "*layers.0.up.base*",
        Cause.PERMUTED,
        Cause.SHIFT,
    ),
    "GELU instead of SiLU": mistake(
        returning("layers.1.act", lambda x: x * 1.01), "layers.1.act", Cause.FACTOR, Cause.OPERATOR
    ),
}


@dataclass(frozen=True, slots=True)
class Options:
    rank: int = 4


class Adapted(nn.Module):
    def __init__(self, inputs, outputs, rank):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.base.requires_grad_(requires_grad=False)
        self.a = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, rank))
        self.scale = 2.0

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.a.T @ self.b.T)


class Layer(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(32), Adapted(32, 64, rank), nn.SiLU()
        self.down = Adapted(64, 32, rank)
        self.norm.requires_grad_(requires_grad=False)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.embed = nn.Embedding(32, 32)
        self.embed.requires_grad_(requires_grad=False)
        self.layers = nn.ModuleList(Layer(rank) for _ in range(3))
        self.head = nn.Linear(32, 32, bias=False)
        self.head.requires_grad_(requires_grad=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(job):
    torch.manual_seed(job.run.seed)
    model = Net(job.options(Options).rank)

    def batch(step):
        generator = torch.Generator().manual_seed(1000 * job.run.seed + step)
        ids = torch.randint(0, 32, (8, 1), generator=generator) + 7 * torch.arange(9)
        return ids[:, :-1] % 32, ids[:, 1:] % 32

    def loss(logits, target):
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    loop.fit(job, model, batch, loss)
