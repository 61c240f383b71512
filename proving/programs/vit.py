"""A vision transformer of what PyTorch brings: `nn.TransformerEncoder`."""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN204, D101, D102, D103

import torch
from torch import nn
from torch.nn import functional

from proving import loop
from proving.case import Cause
from proving.edits import evaluating, loading, mistake, setting, visible
from proving.programs.cnn import batch

_ATTENTION = "encoder.layers.0.self_attn* encoder.layers.0 *in_proj*"

FAULTS = loop.FAULTS | {
    "dropout switched off": visible(
        evaluating("encoder.layers.1.dropout"), "encoder.layers.1.dropout", Cause.MODE
    ),
    "query and key exchanged": mistake(
        loading("encoder.layers.0.self_attn.in_proj_weight", lambda w: w.roll(len(w) // 3, 0)),
        _ATTENTION,
        Cause.PERMUTED,
        Cause.SHIFT,
    ),
    "other eps of a norm": mistake(
        setting("encoder.layers.1.norm1", eps=1e-3), "encoder.layers.1.norm1", Cause.FACTOR, Cause.OPERATOR
    ),
    "heads fewer than trained": mistake(
        setting("encoder.layers.0.self_attn", num_heads=2, head_dim=16), _ATTENTION, Cause.OPERATOR
    ),
    "places not loaded": mistake(
        loading("places", torch.zeros_like),
        "Parameter.places places encoder encoder.layers.0* encoder.input*",
        Cause.OFFSET,
        Cause.FACTOR,
    ),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 2, stride=2)
        self.places = nn.Parameter(torch.randn(16, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.encoder(self.patch(x).flatten(2).transpose(1, 2) + self.places).mean(1))


def train(job):
    torch.manual_seed(job.run.seed)
    loop.fit(job, Net(), lambda step: batch(job.run.seed, step), functional.cross_entropy)
