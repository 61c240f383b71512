"""Contrastive learning: one encoder is called with two views of each record."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import mistake, returning, setting, visible

FAULTS = loop.FAULTS | {
    "temperature of another model": mistake(
        lambda model: setattr(model, "temperature", 1.0),
        "model Gradient.model.* Gradient.encoder.* encoder",
        Cause.FACTOR,
        Cause.OPERATOR,
    ),
    "both views equal": visible(
        lambda model: setattr(model, "noise", 0.0),
        "encoder encoder.0",
        Cause.REPEATED_BATCH,
        Cause.BAD_BATCH,
    ),
    "other activation": mistake(setting("encoder.1", approximate="tanh"), "encoder.1", Cause.OPERATOR),
    "collapse": visible(
        returning("encoder", lambda x: x * 0 + 1),
        "encoder",
        Cause.CONSTANT_BATCH,
        Cause.OPERATOR,
        Cause.FACTOR,
    ),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 16))
        self.temperature, self.noise = 0.2, 0.3

    def forward(self, x):
        views = (x + self.noise * torch.randn_like(x) for _ in range(2))
        left, right = (functional.normalize(self.encoder(view), dim=-1) for view in views)
        return left @ right.T / self.temperature


def train(job):
    torch.manual_seed(job.run.seed)

    def batch(step):
        generator = torch.Generator().manual_seed(1000 * job.run.seed + step)
        return torch.randn(16, 24, generator=generator), torch.arange(16)

    loop.fit(job, Net(), batch, functional.cross_entropy)
