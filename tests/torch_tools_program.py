"""Runs dump systems of the PyTorch world: msProbe, and the statistics of nvdlfw-inspect.

Run by `tests/acceptance/test_torch_tools.py`. Each line of stdin names a tool and a file or directory. Its
run is a process of its own that begins with everything imported; its exit code is printed.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN204

import os
import sys
from pathlib import Path

import numpy as np
import nvdlfw_inspect.api
import torch
from msprobe.pytorch import PrecisionDebugger
from torch import nn

WIDTH, LAYERS, STEPS = 96, 8, 3


class Scores(nn.Module):
    shift = 1.0

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, 8)

    def forward(self, x):
        return torch.log(torch.sigmoid(self.fc(x)) + self.shift)  # the planted line


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.scores = Scores()

    def forward(self, x):
        for layer in self.stem:
            x = nn.functional.gelu(layer(x)) + x
        return self.scores(x)


def msprobe(config):
    """Train a network in which a NaN is born in step 2: the logarithm of a negative number."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    debugger = PrecisionDebugger(config_path=config)
    for step in range(STEPS):
        net.scores.shift = -0.9 if step == 2 else 1.0
        debugger.start(model=net)
        loss = net(torch.randn(4, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        debugger.stop()
        debugger.step()


FEATURES = """
stats:
  enabled: True
  layers:
    layer_name_regex_pattern: .*
  LogTensorStats:
    enabled: True
    tensors: [activation, weight]
    stats: [min, max, mean, std, l1_norm, l2_norm]
    freq: 1
"""


def nvdlfw(directory):
    """Log statistics of two tensors in three steps, and save the tensors; the last activation has an Inf."""
    directory = Path(directory)
    (directory / "features.yaml").write_text(FEATURES)
    api = nvdlfw_inspect.api
    api.initialize(config_file=str(directory / "features.yaml"), log_dir=str(directory / "dump"))
    torch.manual_seed(0)
    for step in range(3):
        tensors = {"activation": torch.randn(4, 8), "weight": torch.randn(8, 8)}
        if step == 2:
            tensors["activation"][0, 0] = torch.inf
        for name, tensor in tensors.items():
            api.log_tensor_stats(
                layer_name="decoder.fc1", tensor_name=name, tensor=tensor, skip_reduction=True
            )
        np.savez(directory / f"{step}.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
        api.step()
    api.end_debug()


TOOLS = {"msprobe": msprobe, "nvdlfw": nvdlfw}
for line in sys.stdin:
    tool, _, argument = line.strip().partition(" ")
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        TOOLS[tool](argument)
        sys.stderr.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
