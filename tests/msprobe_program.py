"""A network in which a NaN is born in step 2, for PyTorch with msProbe: the logarithm of a negative number.

Run by `tests/acceptance/test_next_dump_msprobe.py`. Trains once for each configuration named on a line of
stdin, in a process of its own that begins with everything imported, and prints its exit code.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN204

import os
import sys

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


def train(config):
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


for line in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        train(line.strip())
        sys.stderr.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
