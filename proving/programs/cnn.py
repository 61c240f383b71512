"""A small convolutional network that tells ten patterns apart."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import evaluating, loading, mistake, returning, setting, visible


def _in_float32(model):
    forward = model.conv2.forward

    def without_autocast(x):
        with torch.autocast("cpu", enabled=False):
            return forward(x.float())

    model.conv2.forward = without_autocast


FAULTS = loop.FAULTS | {
    "BatchNorm in eval mode": visible(evaluating("bn1"), "*bn1*", Cause.MODE),
    "dropout switched off": visible(evaluating("drop"), "drop", Cause.MODE),
    "other eps of BatchNorm": mistake(setting("bn1", eps=1e-3), "bn1", Cause.FACTOR, Cause.OPERATOR),
    "other momentum of BatchNorm": mistake(
        setting("bn2", momentum=0.5), "*bn2.running*", Cause.WRONG_UPDATE, Cause.FACTOR, lag=1
    ),
    "ReLU left out": mistake(setting("act1", forward=lambda x: x), "act1", Cause.OPERATOR),
    "leaky ReLU instead of ReLU": mistake(
        setting("act2", forward=functional.leaky_relu), "act2", Cause.OPERATOR
    ),
    "means instead of maxima": mistake(
        setting("pool", forward=lambda x: functional.avg_pool2d(x, 2)), "pool", Cause.OPERATOR
    ),
    "channels loaded in another order": mistake(
        loading("conv2.weight", lambda w: w.flip(1)), "*conv2*", Cause.PERMUTED
    ),
    "kernels transposed": mistake(
        loading("conv2.weight", lambda w: w.transpose(2, 3)), "*conv2*", Cause.TRANSPOSED, Cause.PERMUTED
    ),
    "dropout stays on in evaluation": mistake(
        setting("drop", forward=lambda x: functional.dropout(x, 0.2)),
        "drop* fc.input*",
        Cause.MODE,
        Cause.OPERATOR,
        lag=2,
        hidden="the mode of the model is not dumped",
    ),
    "frozen stage not in eval mode": mistake(
        lambda model: model.bn1.train(), "*bn1*", Cause.MODE, Cause.OPERATOR
    ),
    "autocast left out of one layer": mistake(_in_float32, "*conv2*", Cause.DTYPE, Cause.OPERATOR),
    "one channel is dead": visible(
        returning("conv2", lambda x: x * (torch.arange(x.shape[1]) != 3)[:, None, None]),
        "conv2",
        Cause.BLOCK,
        Cause.ROW,
        Cause.OPERATOR,
    ),
}


@dataclass(frozen=True, slots=True)
class Options:
    channels_last: bool = False
    width: int = 8
    frozen_stage: bool = False


class Net(nn.Module):
    def __init__(self, width, *, frozen_stage):
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.conv2, self.bn2, self.act2 = nn.Conv2d(width, 16, 3), nn.BatchNorm2d(16), nn.ReLU()
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(64, 10)
        if frozen_stage:
            self.conv1.requires_grad_(requires_grad=False)
            self.bn1.requires_grad_(requires_grad=False).eval()

    def forward(self, x):
        x = self.pool(self.act1(self.bn1(self.conv1(x))))
        return self.fc(self.drop(self.act2(self.bn2(self.conv2(x))).flatten(1)))


def batch(seed, step):
    generator = torch.Generator().manual_seed(1000 * seed + step)
    target = torch.randint(0, 10, (16,), generator=generator)
    noise = torch.randn(16, 3, 8, 8, generator=generator)
    pattern = torch.sin(torch.arange(192.0).view(3, 8, 8) * (target[:, None, None, None] + 1))
    return pattern + 0.5 * noise, target


def train(job):
    options = job.options(Options)
    torch.manual_seed(job.run.seed)
    model = Net(options.width, frozen_stage=options.frozen_stage)
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
    loop.fit(job, model, lambda step: batch(job.run.seed, step), functional.cross_entropy)
