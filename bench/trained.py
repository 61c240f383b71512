"""Tensors of a small net that numpy trains: values as training produces them, in realistic sizes.

The net has an embedding, layer norm, ReLU with dropout, GELU, and softmax with cross entropy. It is trained
with Adam, and learns which class each of 4000 tokens belongs to.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

_TOKENS, _WIDTH, _HIDDEN, _BATCH, _CLASSES, _LENGTH = 4000, 256, 1024, 1024, 64, 8
_KEPT = np.float32(0.9)
"""Share of activations that dropout keeps."""
_RATE, _BETA_1, _BETA_2 = np.float32(1e-3), np.float32(0.9), np.float32(0.999)


def trained_tensors(steps: int = 20) -> dict[str, Array]:
    """Train for some steps, and return every tensor of the last step by its name, as float32."""
    net = _Net(np.random.default_rng(0))
    tensors: dict[str, Array] = {}
    for _ in range(steps):
        tensors = net.step()
    return {name: np.ascontiguousarray(values, np.float32) for name, values in tensors.items()}


class _Net:
    """Weights, the moments of Adam, and the labels to learn."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._labels = rng.integers(0, _CLASSES, _TOKENS)
        shapes = {
            "embedding": (_TOKENS, _WIDTH),
            "weight0": (_WIDTH, _HIDDEN),
            "weight1": (_HIDDEN, _HIDDEN),
            "weight2": (_HIDDEN, _CLASSES),
            "bias0": (_HIDDEN,),
            "bias1": (_HIDDEN,),
            "bias2": (_CLASSES,),
        }
        self._weights = {
            name: rng.standard_normal(shape, np.float32)
            * np.float32(shape[0] ** -0.5 if len(shape) > 1 else 0)
            for name, shape in shapes.items()
        }
        self._first = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self._second = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self._steps = 0

    def step(self) -> dict[str, Array]:
        """Do one step of training, and return its tensors."""
        weights = self._weights
        # Some tokens are frequent, most are rare, and many never occur.
        tokens = (_TOKENS * self._rng.random((_BATCH, _LENGTH)) ** 3).astype(np.int64)
        embedded = weights["embedding"][tokens]
        mean = embedded.mean(1)
        normal = (mean - mean.mean(1, keepdims=True)) / (mean.std(1, keepdims=True) + np.float32(1e-5))
        linear0 = normal @ weights["weight0"] + weights["bias0"]
        relu = np.maximum(linear0, 0)
        kept = self._rng.random(relu.shape) < _KEPT
        dropped = relu * kept / _KEPT
        linear1 = dropped @ weights["weight1"] + weights["bias1"]
        inner = np.tanh(np.float32(0.7978845) * (linear1 + np.float32(0.044715) * linear1**3))
        gelu = linear1 * np.float32(0.5) * (1 + inner)
        logits = gelu @ weights["weight2"] + weights["bias2"]
        softmax = np.exp(logits - logits.max(1, keepdims=True))
        softmax /= softmax.sum(1, keepdims=True)

        to_logits = softmax.copy()
        to_logits[np.arange(_BATCH), self._labels[tokens[:, 0]]] -= 1
        to_logits /= _BATCH
        to_gelu = to_logits @ weights["weight2"].T
        slope = np.float32(0.7978845) * (1 + np.float32(3 * 0.044715) * linear1**2)
        to_linear1 = to_gelu * np.float32(0.5) * ((1 + inner) + linear1 * (1 - inner**2) * slope)
        to_relu = to_linear1 @ weights["weight1"].T * kept / _KEPT
        to_linear0 = to_relu * (linear0 > 0)
        # The gradient ignores the layer norm: only the distribution of values matters here.
        to_mean = to_linear0 @ weights["weight0"].T
        to_embedding = np.zeros_like(weights["embedding"])
        np.add.at(to_embedding, tokens, np.repeat(to_mean[:, None] / _LENGTH, _LENGTH, 1))
        gradients = {
            "embedding": to_embedding,
            "weight0": normal.T @ to_linear0,
            "weight1": dropped.T @ to_linear1,
            "weight2": gelu.T @ to_logits,
            "bias0": to_linear0.sum(0),
            "bias1": to_linear1.sum(0),
            "bias2": to_logits.sum(0),
        }
        return {
            "embedded": embedded,
            "normal": normal,
            "linear0": linear0,
            "relu": relu,
            "dropped": dropped,
            "linear1": linear1,
            "gelu": gelu,
            "logits": logits,
            "softmax": softmax,
            "to_logits": to_logits,
            "to_gelu": to_gelu,
            "to_linear1": to_linear1,
            "to_relu": to_relu,
            "to_linear0": to_linear0,
            "to_mean": to_mean,
            **self._adam(gradients),
        }

    def _adam(self, gradients: dict[str, Array]) -> dict[str, Array]:
        """Update the weights, and return copies of everything that Adam reads and writes."""
        self._steps += 1
        tensors: dict[str, Array] = {}
        for name, gradient in gradients.items():
            first, second = self._first[name], self._second[name]
            first += (1 - _BETA_1) * (gradient - first)
            second += (1 - _BETA_2) * (gradient * gradient - second)
            scaled = np.sqrt(second / (1 - _BETA_2**self._steps)) + np.float32(1e-8)
            update = _RATE * first / (1 - _BETA_1**self._steps) / scaled
            self._weights[name] -= update
            tensors |= {
                name: self._weights[name].copy(),
                f"gradient of {name}": gradient,
                f"first moment of {name}": first.copy(),
                f"second moment of {name}": second.copy(),
                f"update of {name}": update,
            }
        return tensors
