"""A network in which a NaN is born in step 2, for MindSpore: logarithm or root of a negative number.

Run by `tests/acceptance/test_next_dump.py` with the Python that has MindSpore.
"""
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN204

import argparse

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=("log", "sqrt"), required=True)
kind = parser.parse_args().kind
WIDTH, LAYERS, STEPS = 256, 4, 4
ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
ms.set_seed(3)
rng = np.random.RandomState(3)


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.act = nn.LayerNorm((WIDTH,)), nn.GELU()
        self.fc1, self.fc2 = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, x):
        return x + self.fc2(self.act(self.fc1(self.norm(x))))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = nn.SequentialCell([Block() for _ in range(LAYERS)])
        self.head, self.sigmoid = nn.Dense(WIDTH, 4), ops.Sigmoid()
        self.last = ops.Log() if kind == "log" else ops.Sqrt()

    def construct(self, x, shift):
        return self.last(self.sigmoid(self.head(self.blocks(x))) + shift).mean()


net = Net()
step = nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 1e-3))
step.set_train()
for number in range(STEPS):
    shift = np.zeros((16, 4), np.float32)
    if number >= 2:
        shift[2, 1] = -2.0
    x = rng.randn(16, WIDTH).astype(np.float32)
    print(number, step(Tensor(x), Tensor(shift)).asnumpy(), flush=True)
