"""One step of a diffusion model: a small U-Net predicts the noise in a picture."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN204, D101, D103

import math

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import mistake, returning, setting, visible

FAULTS = loop.FAULTS | {
    "other groups of a norm": mistake(setting("norm1", num_groups=2), "norm1", Cause.OPERATOR),
    "other eps of a norm": mistake(setting("norm2", eps=1e-3), "norm2", Cause.OPERATOR, Cause.FACTOR),
    "time is not used": visible(
        returning("time", torch.zeros_like), "time", Cause.OPERATOR, Cause.FACTOR, Cause.BLOCK
    ),
    "skip connection left out": mistake(
        lambda model: setattr(model, "skip", 0.0), "norm3 norm3.input* up", Cause.OPERATOR, Cause.OFFSET
    ),
    "schedule of another model": mistake(
        lambda model: setattr(model, "steps", 500), "time.0 time time.input*", Cause.OPERATOR, Cause.FACTOR
    ),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.first, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.down, self.norm2 = nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16)
        self.up, self.norm3 = nn.ConvTranspose2d(16, 16, 4, stride=2, padding=1), nn.GroupNorm(4, 16)
        self.last = nn.Conv2d(16, 1, 3, padding=1)
        self.skip, self.steps = 1.0, 1000

    def forward(self, x):
        """Take pictures whose last row holds the time."""
        picture, time = x[:, :, :-1], x[:, 0, -1, 0]
        angles = self.steps * time[:, None] * torch.exp(-math.log(1e4) * torch.arange(8) / 8)
        told = self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None]
        before = functional.silu(self.norm1(self.first(picture))) + told
        inner = functional.silu(self.norm2(self.down(before)))
        return self.last(functional.silu(self.norm3(self.up(inner) + self.skip * before)))


def batch(seed, step):
    generator = torch.Generator().manual_seed(1000 * seed + step)
    clean = torch.sin(torch.rand(8, 1, 8, 1, generator=generator) * 6 + torch.arange(8.0))
    noise = torch.randn(clean.shape, generator=generator)
    time = torch.rand(8, 1, 1, 1, generator=generator)
    kept = torch.cos(time * math.pi / 2)
    noisy = kept * clean + (1 - kept**2).sqrt() * noise
    return torch.cat([noisy, time.expand(-1, -1, 1, 8)], 2), noise


def train(job):
    torch.manual_seed(job.run.seed)
    loop.fit(job, Net(), lambda step: batch(job.run.seed, step), functional.mse_loss)
