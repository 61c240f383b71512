"""Models for tests of the recorder. Imports PyTorch, so import it only where that is installed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Rescale(nn.Module):  # type: ignore[misc]
    """Takes a logarithm, of zero for the smallest element if `broken`."""

    broken = False

    def forward(self, x: Any) -> Any:
        x = x - x.min()
        return torch.log(x) if self.broken else torch.log1p(x)  # the planted line


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.rescale = Rescale()

    def forward(self, x: Any, *, scale: float = 1.0) -> Any:
        return x + scale * self.rescale(self.fc(x))


class Net(nn.Module):  # type: ignore[misc]
    """Two blocks; the second one may be checkpointed."""

    def __init__(self, *, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first = Block()
        self.second = Block()
        self.reentrant = reentrant

    def forward(self, x: Any) -> Any:
        x = self.first(x, scale=0.5)
        if self.reentrant is None:
            return self.second(x)
        return checkpoint(self.second, x, use_reentrant=self.reentrant)


@dataclass
class Answer:
    logits: Any
    loss: Any = None
    note: str = ""


class Pair(NamedTuple):
    left: Any
    right: Any


class Returns(nn.Module):  # type: ignore[misc]
    """Returns whatever a function makes of its input."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Any) -> Any:
        return self.make(x)


def train(net: Any, steps: int, *, before: Callable[[int], None] | None = None) -> None:
    """Train for some steps, with the loss of a mean square."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(steps):
        if before is not None:
            before(step)
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
