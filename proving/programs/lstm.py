"""An LSTM that learns to continue texts of a small alphabet."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import loading, mistake, returning

FAULTS = loop.FAULTS | {
    "gates in the order of another framework": mistake(
        loading("rnn.weight_ih_l0", lambda w: w.roll(len(w) // 4, 0)),
        "*rnn.weight_ih_l0* rnn",
        Cause.PERMUTED,
    ),
    "input and recurrent bias both loaded": mistake(
        loading("rnn.bias_hh_l1", lambda b: b + 1), "*rnn.bias_hh_l1* rnn", Cause.OFFSET
    ),
    "words shifted by one": mistake(
        returning("embed", lambda x: x.roll(1, 1)), "embed", Cause.SHIFT, Cause.PERMUTED
    ),
    "read backwards": mistake(
        returning("embed", lambda x: x.flip(1)), "embed", Cause.PERMUTED, Cause.OPERATOR
    ),
}

WORDS, LENGTH, BATCH = 32, 12, 8


@dataclass(frozen=True, slots=True)
class Options:
    kind: str = "LSTM"
    """LSTM, GRU, or cells: a module that is called once for each word."""
    width: int = 32


class Cells(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.LSTMCell(width, width)

    def forward(self, x):
        state, seen = None, []
        for word in x.unbind(1):
            state = self.cell(word, state)
            seen.append(state[0])
        return torch.stack(seen, 1), state


class Net(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.embed, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        kind = getattr(nn, options.kind, None)
        self.rnn = kind(width, width, 2, batch_first=True) if kind else Cells(width)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def batch(seed, step):
    generator = torch.Generator().manual_seed(1000 * seed + step)
    ids = torch.randint(0, WORDS, (BATCH, 1), generator=generator) + 3 * torch.arange(LENGTH + 1)
    return ids[:, :-1] % WORDS, ids[:, 1:] % WORDS


def train(job):
    torch.manual_seed(job.run.seed)
    model = Net(job.options(Options))

    def loss(logits, target):
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    loop.fit(job, model, lambda step: batch(job.run.seed, step), loss)
