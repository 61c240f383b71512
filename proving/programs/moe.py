"""A mixture of experts with top-k routing and a loss that balances it."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import mistake, returning, setting, visible


def _exchanged(model):
    model.experts[0], model.experts[1] = model.experts[1], model.experts[0]


FAULTS = loop.FAULTS | {
    "router in bfloat16": visible(
        returning("router", lambda x: x.bfloat16().float()), "router", Cause.DTYPE, Cause.OPERATOR
    ),
    "experts exchanged": mistake(_exchanged, "*experts.0* *experts.1*", Cause.PERMUTED, Cause.WRONG_SHARD),
    "an expert returns nothing": visible(
        returning("experts.1", torch.zeros_like), "experts.1", Cause.OPERATOR, Cause.BLOCK, Cause.FACTOR
    ),
    "gates do not add up to one": mistake(
        lambda model: setattr(model, "normed", False), "norm norm.input* model", Cause.OPERATOR, Cause.FACTOR
    ),
    "one expert instead of two": mistake(
        lambda model: setattr(model, "top", 1),
        "*experts.* experts.* norm norm.input*",
        Cause.OPERATOR,
    ),
    "other eps of the norm": mistake(setting("norm", eps=1e-3), "norm", Cause.FACTOR, Cause.OPERATOR),
    "sign of the router": mistake(returning("router", lambda x: -x), "router", Cause.SIGN, Cause.FACTOR),
}


@dataclass(frozen=True, slots=True)
class Options:
    experts: int = 4
    top: int = 2


class Net(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.top, self.normed, self.balance = options.top, True, 0.0
        self.embed = nn.Embedding(32, 16)
        self.router = nn.Linear(16, options.experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(options.experts)
        )
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 32)

    def forward(self, ids):
        x = self.embed(ids).flatten(0, 1)
        share = self.router(x).softmax(-1)
        gates, chosen = share.topk(self.top, -1)
        gates = gates / gates.sum(-1, keepdim=True) if self.normed else gates
        self.balance = (share.mean(0) ** 2).sum() * len(self.experts)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):  # an expert that nobody chose is not called
                mixed = mixed.index_add(0, token, (expert(x[token]) * gates[token, place, None]).to(x.dtype))
        return self.head(self.norm(x + mixed)).unflatten(0, ids.shape)


def train(job):
    torch.manual_seed(job.run.seed)
    model = Net(job.options(Options))

    def batch(step):
        generator = torch.Generator().manual_seed(1000 * job.run.seed + step)
        ids = torch.randint(0, 32, (8, 1), generator=generator) + 5 * torch.arange(9)
        return ids[:, :-1] % 32, ids[:, 1:] % 32

    def loss(logits, target):
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten()) + 0.01 * model.balance

    loop.fit(job, model, batch, loss)
