"""A variational autoencoder of small pictures."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import loading, mistake, returning, visible

FAULTS = loop.FAULTS | {
    "overflow of the variance": visible(
        loading("variance.bias", lambda b: b + 300),
        "*variance.bias model decoder decoder.*",
        Cause.NOT_FINITE,
        Cause.OFFSET,
    ),
    "standard deviation read as variance": mistake(
        returning("variance", lambda x: 2 * x), "variance", Cause.FACTOR
    ),
    "noise left out": mistake(
        lambda model: setattr(model, "noise", 0.0), "decoder decoder.0 decoder.input* model", Cause.OPERATOR
    ),
    "sigmoid twice": visible(returning("decoder", torch.sigmoid), "decoder", Cause.OPERATOR),
    "divergence left out of the loss": mistake(
        lambda model: setattr(model, "weight", 0.0),
        "Gradient.mean.* Gradient.variance.* Gradient.Module.* model mean variance",
        Cause.OPERATOR,
        Cause.FACTOR,
    ),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.mean, self.variance = nn.Linear(48, 8), nn.Linear(48, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid())
        self.noise, self.weight = 1.0, 1.0

    def forward(self, x):
        hidden = self.encoder(x)
        mean, variance = self.mean(hidden), self.variance(hidden)
        z = mean + self.noise * torch.randn_like(mean) * torch.exp(0.5 * variance)
        return self.decoder(z), mean, variance


def batch(seed, step):
    generator = torch.Generator().manual_seed(1000 * seed + step)
    centre = torch.rand(16, 2, 1, generator=generator) * 8
    away = (torch.arange(8) - centre) ** 2
    picture = torch.exp(-(away[:, 0, :, None] + away[:, 1, None]) / 4).flatten(1)
    return picture, picture


def train(job):
    torch.manual_seed(job.run.seed)
    model = Net()

    def loss(output, target):
        picture, mean, variance = output
        error = functional.mse_loss(picture, target, reduction="sum")
        divergence = -0.5 * (1 + variance - mean**2 - variance.exp()).sum()
        return (error + model.weight * divergence) / len(target)

    loop.fit(job, model, lambda step: batch(job.run.seed, step), loss)
