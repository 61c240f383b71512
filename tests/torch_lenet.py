"""The LeNet of MindSpore dumps as one writes it in PyTorch, with their weights. Imports PyTorch."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

import ingest

#: By name, the tensor of the dump that has the values from before the update.
_CONV = "Conv2D.*_{0}-Conv2d_*.input.1"
_DENSE = "MatMul.Default_network*_{0}-Dense_*.input.1"
_BIAS = "BiasAdd.Default_network*_{0}-Dense_*.input.1"


class Projection(nn.Module):  # type: ignore[misc]
    """A linear layer that keeps its weight with exchanged axes, as GPT-2 does."""

    def __init__(self, weight: Any, bias: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.T.contiguous())
        self.bias = nn.Parameter(bias)

    def forward(self, x: Any) -> Any:
        return torch.addmm(self.bias, x, self.weight)


class LeNet(nn.Module):  # type: ignore[misc]
    """LeNet5."""

    def __init__(self, store: ingest.DumpStore) -> None:
        super().__init__()
        self.features = nn.Sequential(*(self._convolution(store, name) for name in ("conv1", "conv2")))
        self.classifier = nn.ModuleList(
            Projection(read(store, _DENSE.format(name)), read(store, _BIAS.format(name)))
            for name in ("fc1", "fc2", "fc3")
        )

    def _convolution(self, store: ingest.DumpStore, name: str) -> Any:
        weight = read(store, _CONV.format(name))
        layer = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], bias=False)
        layer.weight = nn.Parameter(weight)
        return nn.Sequential(layer, nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, x: Any) -> Any:
        x = self.features(x).flatten(1)
        for number, layer in enumerate(self.classifier):
            x = layer(x)
            if number < 2:
                x = torch.relu(x)
        return x


def read(store: ingest.DumpStore, name: str) -> Any:
    """Return the only tensor of this name in the first step."""
    first, *_ = store.tensors(name, rank=0, step=0)
    return torch.from_numpy(first.read().copy())


def record_lenet(store: Path, directory: Path) -> None:
    """Record one step of training on the batch of a dump."""
    opened = ingest.open_store(store)
    net = LeNet(opened)
    batch, labels = (read(opened, f"Parameter.inputs{number}.output.0") for number in (0, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    of = ("inputs", "outputs", "functions", "parameters", "gradients")
    with ingest.record(net, directory, what="tensors", of=of):
        nn.functional.cross_entropy(net(batch), labels.long()).backward()
        optimizer.step()
