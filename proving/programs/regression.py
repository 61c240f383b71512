"""A multilayer perceptron that predicts prices from a table."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import evaluating, loading, mistake, returning, visible

FAULTS = loop.FAULTS | {
    # It learns, as a branch that users let begin at zero.
    "a layer begins at zero": mistake(
        loading("net.2.weight", torch.zeros_like),
        "Parameter.net.2.weight net.2 Gradient.net.0.* net.0",
        Cause.NO_GRADIENT,
        Cause.NOT_UPDATED,
        Cause.CONSTANT_BATCH,
        Cause.FACTOR,
        lag=1,
    ),
    "all neurons begin equal": visible(
        loading("net.0.weight", lambda w: w[:1].expand_as(w)),
        "Parameter.net.0.weight net.0",
        Cause.ROW,
        Cause.BLOCK,
        Cause.REPEATED_BATCH,
    ),
    "columns of the table in another order": mistake(
        loading("net.0.weight", lambda w: w.flip(1)), "*net.0*", Cause.PERMUTED
    ),
    "spectral norm in eval mode from the start": mistake(
        evaluating("net.2"), "*net.2*", Cause.OPERATOR, Cause.MODE
    ),
    # The values are finite; what overflows is the gradient that `net.4` passes back to what it read.
    "square of a square": visible(
        returning("net.4", lambda x: (x * 1e13) ** 3),
        "net.4 Gradient.net.3.output",
        Cause.NOT_FINITE,
        Cause.OPERATOR,
    ),
    "prediction has one dimension less": mistake(
        returning("net.4", lambda x: x.mean(0, keepdim=True).expand_as(x)), "net.4", Cause.OPERATOR, Cause.ROW
    ),
}


@dataclass(frozen=True, slots=True)
class Options:
    scale: float = 10.0
    """Of the prices; users do not always bring them to 1."""
    spectral: bool = False


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)


def train(job):
    options = job.options(Options)
    torch.manual_seed(job.run.seed)

    def batch(step):
        generator = torch.Generator().manual_seed(1000 * job.run.seed + step)
        x = torch.randn(32, 12, generator=generator)
        return x, options.scale * (x[:, :1] * x[:, 1:2] + x[:, 2:3].abs())

    model = Net()
    if options.spectral:
        nn.utils.spectral_norm(model.net[2])
    loop.fit(job, model, batch, functional.mse_loss)
