"""A decoder-only transformer that learns to continue sequences, in the variants that are in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from proving import loop
from proving.case import Cause, Fault
from proving.edits import returning, visible
from proving.job import Job

_ATTENTION = (
    "blocks.1.attention",
    "blocks.1.attention.softmax*",
    "blocks.1.attention.out",
    "blocks.1.attention.out.input.*",
)
_CHOICE = "nothing in one run says what the user meant"

FAULTS = loop.FAULTS | {
    "eps of one norm": Fault(("blocks.1.norm1",), (Cause.FACTOR, Cause.OPERATOR), hidden=_CHOICE),
    "other gelu in one block": Fault(("blocks.1.mlp", "blocks.1.mlp.act"), (Cause.OPERATOR,), hidden=_CHOICE),
    "mask off by one": Fault(_ATTENTION, (Cause.OPERATOR, Cause.SHIFT), hidden=_CHOICE),
    "scores not scaled": Fault(_ATTENTION, (Cause.OPERATOR,), hidden=_CHOICE),
    "rope base": Fault(_ATTENTION, (Cause.OPERATOR,), hidden=_CHOICE),
    "positions shifted": Fault(
        ("positions", "Module.Embedding.positions", "embed"),
        (Cause.SHIFT, Cause.OFFSET, Cause.PERMUTED),
        hidden=_CHOICE,
    ),
    "keys and values exchanged": Fault(_ATTENTION, (Cause.OPERATOR, Cause.PERMUTED), hidden=_CHOICE),
    "heads not transposed back": Fault(_ATTENTION, (Cause.PERMUTED, Cause.TRANSPOSED), hidden=_CHOICE),
    "residual missing": Fault(("blocks.1",), (Cause.OPERATOR, Cause.OFFSET), hidden=_CHOICE),
    "dropout left out": Fault(("blocks.1.drop",), (Cause.MODE, Cause.OPERATOR), hidden=_CHOICE),
    "log of a negative number": visible(
        returning("blocks.1.mlp.act", torch.log), "blocks.1.mlp.act", Cause.NOT_FINITE
    ),
    "head not tied": Fault(
        ("Parameter.head.weight", "head"), (Cause.STALE, Cause.OPERATOR), lag=1, hidden=_CHOICE
    ),
}


@dataclass(frozen=True, slots=True)
class Options:
    """A variant."""

    layers: int = 3
    width: int = 32
    heads: int = 4
    groups: int = 4
    """Heads of keys and values; fewer than heads: grouped queries."""
    positions: str = "learned"
    norm: str = "layer"
    post_norm: bool = False
    bias: bool = True
    tied: bool = False
    fused: bool = False
    kernel: str = "eager"
    dropout: float = 0.0
    checkpointing: bool = False
    sparse: bool = False
    padding: bool = False
    """Whether some records end early, so that masks have whole rows of -inf."""


TOKENS, LENGTH, BATCH = 64, 16, 8


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, options: Options, wrong: Callable[[str], bool]) -> None:
        super().__init__()
        self.options, self.wrong = options, wrong
        self.each = options.width // options.heads
        shared = options.groups * self.each
        if options.fused:
            self.qkv = nn.Linear(options.width, options.width + 2 * shared, bias=options.bias)
        else:
            self.q = nn.Linear(options.width, options.width, bias=options.bias)
            self.k = nn.Linear(options.width, shared, bias=options.bias)
            self.v = nn.Linear(options.width, shared, bias=options.bias)
        self.out = nn.Linear(options.width, options.width, bias=options.bias)

    def forward(self, x: Any) -> Any:
        """Attend to this token and those before."""
        options, shared = self.options, self.options.groups * self.each
        if options.fused:
            q, k, v = self.qkv(x).split([options.width, shared, shared], -1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        if self.wrong("keys and values exchanged"):
            k, v = v, k
        q, k, v = (part.unflatten(-1, (-1, self.each)).transpose(1, 2) for part in (q, k, v))
        if options.positions == "rope":
            base = 1000 if self.wrong("rope base") else 10000
            q, k = _rotated(q, base), _rotated(k, base)
        repeats = options.heads // options.groups
        k, v = (part.repeat_interleave(repeats, 1) if repeats > 1 else part for part in (k, v))
        mixed = self.mixed(q, k, v)
        if not self.wrong("heads not transposed back"):
            mixed = mixed.transpose(1, 2)
        return self.out(mixed.reshape(x.shape))

    def mixed(self, q: Any, k: Any, v: Any) -> Any:
        """Return the values, weighted."""
        if self.options.kernel == "sdpa":
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(-1, -2)
        if not self.wrong("scores not scaled"):
            scores = scores / self.each**0.5
        diagonal = 2 if self.wrong("mask off by one") else 1
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(diagonal)
        return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


def _rotated(x: Any, base: int) -> Any:
    half = x.size(-1) // 2
    angles = torch.arange(x.size(-2))[:, None] / base ** (torch.arange(half) / half)
    left, right = x.split(half, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Mlp(nn.Module):
    """Up, GELU, down."""

    def __init__(self, options: Options, wrong: Callable[[str], bool]) -> None:
        super().__init__()
        self.up = nn.Linear(options.width, 4 * options.width, bias=options.bias)
        self.act = nn.GELU(approximate="tanh" if wrong("other gelu in one block") else "none")
        self.down = nn.Linear(4 * options.width, options.width, bias=options.bias)

    def forward(self, x: Any) -> Any:
        """Run it."""
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    """Attention and an MLP, each with a norm and a residual."""

    def __init__(self, options: Options, wrong: Callable[[str], bool]) -> None:
        super().__init__()
        self.post_norm, self.wrong = options.post_norm, wrong
        kind = nn.LayerNorm if options.norm == "layer" else nn.RMSNorm
        self.norm1 = kind(options.width, eps=1e-6 if wrong("eps of one norm") else 1e-5)
        self.attention = Attention(options, wrong)
        self.norm2 = kind(options.width, eps=1e-5)
        self.mlp = Mlp(options, wrong)
        self.drop = nn.Dropout(0.0 if wrong("dropout left out") else options.dropout)

    def forward(self, x: Any) -> Any:
        """Run it."""
        if self.post_norm:
            x = self.norm1(x + self.drop(self.attention(x)))
            return self.norm2(x + self.drop(self.mlp(x)))
        x = x + self.drop(self.attention(self.norm1(x)))
        inner = self.drop(self.mlp(self.norm2(x)))
        return inner if self.wrong("residual missing") else x + inner


class Transformer(nn.Module):
    """Tokens to logits."""

    def __init__(self, options: Options, job: Job) -> None:
        super().__init__()
        self.options, self.job = options, job
        self.embed = nn.Embedding(TOKENS, options.width, sparse=options.sparse)
        if options.positions == "learned":
            self.positions = nn.Embedding(LENGTH + 1, options.width)
        self.blocks = nn.ModuleList(
            Block(options, job.wrong if number == 1 else _never) for number in range(options.layers)
        )
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, TOKENS, bias=False)
        if options.tied:  # otherwise the first logits are too large
            nn.init.normal_(self.embed.weight, std=0.02)
        if options.tied and not job.wrong("head not tied"):
            self.head.weight = self.embed.weight

    def forward(self, tokens: Any) -> Any:
        """Return logits."""
        x = self.embed(tokens)
        if self.options.positions == "learned":
            first = 1 if self.job.wrong("positions shifted") else 0
            x = x + self.positions(torch.arange(first, first + tokens.size(1)))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.options.checkpointing else block(x)
        return self.head(self.norm(x))


def _never(_: str) -> bool:
    return False


def batch(seed: int, step: int) -> tuple[Any, Any]:
    """Return sequences that count up, each by its own stride, and what comes next."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    first, stride = (torch.randint(1, TOKENS, (BATCH, 1), generator=generator) for _ in range(2))
    tokens = (first + stride * torch.arange(LENGTH + 1)) % TOKENS
    return tokens[:, :-1], tokens[:, 1:]


def train(job: Job) -> None:
    """Train it."""
    options = job.options(Options)
    torch.manual_seed(job.run.seed)
    model = Transformer(options, job)

    def loss(logits: Any, target: Any) -> Any:
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    loop.fit(job, model, lambda step: batch(job.run.seed, step), loss)
