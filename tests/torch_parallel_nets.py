"""The nets of `tests.torch_parallel`. Imports PyTorch, so import it only where that is installed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

BATCH, LENGTH, WIDTH, HEADS, VOCABULARY, EXPERTS = 8, 6, 16, 4, 13, 4


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        names = ("qkv",) if fused else ("q", "k", "v")
        for projection in names:
            setattr(self, projection, nn.Linear(WIDTH, WIDTH * 3 if fused else WIDTH))
        self.o = nn.Linear(WIDTH, WIDTH)
        self.is_fused = fused

    def forward(self, x: Any) -> Any:
        parts = self.qkv(x).chunk(3, -1) if self.is_fused else (self.q(x), self.k(x), self.v(x))
        q, k, v = (part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in parts)
        scores = (q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5).softmax(-1)
        return self.o((scores @ v).transpose(1, 2).flatten(2))


class Experts(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: Any) -> Any:
        gates = self.router(x).softmax(-1)
        outputs = [gates[..., n : n + 1] * torch.relu(e(x)) for n, e in enumerate(self.experts)]
        return torch.stack(outputs).sum(0)


class Language(nn.Module):  # type: ignore[misc]
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.embed(x)))


class Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.act, self.down = nn.Linear(WIDTH, 20), nn.GELU(), nn.Linear(20, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.down(self.act(self.up(self.norm(x))))


NETS: dict[str, Callable[[], Any]] = {
    "mlp": Mlp,
    "separate": lambda: Attention(fused=False),
    "fused": lambda: Attention(fused=True),
    "embedding": lambda: Language(tied=False),
    "tied": lambda: Language(tied=True),
    "experts": Experts,
    "convolution": lambda: nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5)),
}


def make(name: str) -> tuple[Any, Any]:
    """Return a net and its batch: the same in every process."""
    torch.manual_seed(list(NETS).index(name))
    net = NETS[name]()
    if name in ("embedding", "tied"):
        return net, torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    return net, torch.randn((BATCH, 2, 6, 6) if name == "convolution" else (BATCH, LENGTH, WIDTH))
