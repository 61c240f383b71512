"""A generative adversarial network on points of a circle: two optimizers, two backward passes a step."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN204, D101, D103

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as entropy

from proving.case import Cause
from proving.edits import mistake, visible

_GENERATOR = "Gradient.generator.* Parameter.generator.* generator generator.*"
_CRITIC = "Gradient.critic.* critic critic.*"

FAULTS = {
    "generator never gets a gradient": visible(None, _GENERATOR, Cause.NO_GRADIENT, Cause.NOT_UPDATED, lag=1),
    "critic is not cleared": visible(None, _CRITIC, Cause.ACCUMULATED),
    "labels exchanged": mistake(None, _CRITIC, Cause.SIGN, Cause.OPERATOR),
    "critic's optimizer has a copy": visible(
        None, "Parameter.critic.* critic critic.*", Cause.NOT_UPDATED, lag=1
    ),
    "noise of one value": visible(None, "generator generator.0", Cause.CONSTANT_BATCH, Cause.BAD_BATCH),
}


@dataclass(frozen=True, slots=True)
class Options:
    optimizer: str = "adam"
    threads: int = 1


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


def train(job):
    options = job.options(Options)
    torch.manual_seed(job.run.seed)
    torch.set_num_threads(options.threads)
    gan = Gan()
    kinds = {
        "adam": lambda p: torch.optim.Adam(p, 2e-3, betas=(0.5, 0.999)),
        "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.5),
    }
    first = kinds[options.optimizer](gan.generator.parameters())
    is_lost = job.wrong("critic's optimizer has a copy")
    second = kinds[options.optimizer]((copy.deepcopy(gan.critic) if is_lost else gan.critic).parameters())
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    with job.recorded(gan, advance="manual") as recorder:
        for step in range(job.steps):
            angle = torch.rand(16, 1) * 6.28
            real, z = torch.cat([angle.cos(), angle.sin()], 1), torch.randn(16, 8)
            if job.wrong("noise of one value", step):
                z = torch.full_like(z, 0.5)
            fake = gan.generator(z)
            right, wrong = (zeros, ones) if job.wrong("labels exchanged", step) else (ones, zeros)
            if step == 0 or not job.wrong("critic is not cleared", step):
                gan.critic.zero_grad()
            (entropy(gan.critic(real), right) + entropy(gan.critic(fake.detach()), wrong)).backward()
            second.step()
            gan.generator.zero_grad()
            seen = fake.detach() if job.wrong("generator never gets a gradient", step) else fake
            entropy(gan.critic(seen), ones).backward()
            first.step()
            recorder.advance()
