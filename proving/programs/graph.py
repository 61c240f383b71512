"""A graph network that tells two communities apart."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import loading, mistake, setting, visible

FAULTS = loop.FAULTS | {
    "degrees not divided by": mistake(
        lambda model: setattr(model, "normed", False),
        "layers.0 layers.0.input*",
        Cause.OPERATOR,
        Cause.FACTOR,
    ),
    "edges reversed": mistake(
        lambda model: model.edges.copy_(model.edges.flip(0)),
        "*edges* layers.0 layers.0.input*",
        Cause.PERMUTED,
    ),
    "nodes in another order": mistake(
        lambda model: model.edges.copy_((model.edges + 1) % 12),
        "*edges* layers.0 layers.0.input*",
        Cause.OFFSET,
        Cause.SHIFT,
    ),
    "division by a degree of zero": visible(
        lambda model: model.edges[1].fill_(0), "*edges* layers.0 layers.0.input* model", Cause.NOT_FINITE
    ),
    "weights transposed": mistake(loading("layers.1.weight", lambda w: w.T), "*layers.1*", Cause.TRANSPOSED),
    "other slope": mistake(setting("act", negative_slope=0.1), "act", Cause.OPERATOR),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        ring = torch.arange(12)
        near, far = torch.stack([ring, (ring + 1) % 12]), torch.stack([ring, (ring + 2) % 12])
        self.register_buffer("edges", torch.cat([near, far, near[:, :7]], 1))
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.act, self.head = nn.LeakyReLU(0.01), nn.Linear(16, 2)
        self.normed = True

    def forward(self, x):
        source, target = self.edges
        degree = torch.zeros(x.shape[1]).index_add(0, target, torch.ones(len(target)))
        for layer in self.layers:
            mixed = torch.zeros_like(x).index_add(1, target, x[:, source])
            x = x + self.act(layer(mixed / degree[:, None] if self.normed else mixed))
        return self.head(x)


def batch(seed, step):
    generator = torch.Generator().manual_seed(1000 * seed + step)
    target = torch.randint(0, 2, (8, 12), generator=generator)
    return torch.randn(8, 12, 16, generator=generator) + target[..., None], target


def train(job):
    torch.manual_seed(job.run.seed)

    def loss(logits, target):
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    loop.fit(job, Net(), lambda step: batch(job.run.seed, step), loss)
