"""Matrix factorization with biases: most rows of its tables have no gradient in a step."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import loading, mistake, returning, visible

FAULTS = loop.FAULTS | {
    "items off by one": mistake(
        loading("items.weight", lambda w: w.roll(1, 0)), "*items*", Cause.SHIFT, Cause.PERMUTED
    ),
    "users and items exchanged": mistake(
        lambda model: setattr(model, "order", (1, 0)), "*users* *items*", Cause.PERMUTED, Cause.OPERATOR
    ),
    "ratings of another scale": mistake(returning("drop", lambda x: 2 * x), "drop", Cause.FACTOR),
    "one row is not a number": visible(
        loading("users.weight", lambda w: torch.where(torch.arange(len(w))[:, None] == 3, torch.nan, w)),
        "Parameter.users.weight users",
        Cause.NOT_FINITE,
        Cause.ROW,
    ),
}


@dataclass(frozen=True, slots=True)
class Options:
    sparse: bool = False


class Net(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.users, self.items = (nn.Embedding(size, 16, sparse=sparse) for size in (40, 40))
        self.bias = nn.Embedding(40, 1, sparse=sparse)
        self.drop, self.order = nn.Dropout(0.0), (0, 1)

    def forward(self, pairs):
        user, item = (pairs[:, place] for place in self.order)
        return self.drop(self.users(user) * self.items(item)).sum(-1) + self.bias(item)[:, 0]


def train(job):
    torch.manual_seed(job.run.seed)
    model = Net(job.options(Options).sparse)

    def batch(step):
        generator = torch.Generator().manual_seed(1000 * job.run.seed + step)
        pairs = torch.randint(0, 40, (32, 2), generator=generator)
        return pairs, ((pairs[:, 0] * pairs[:, 1]) % 5).float()

    loop.fit(job, model, batch, functional.mse_loss)
