"""What an optimizer makes of a parameter, with the rates that most elements show.

SGD, with momentum, decay or Nesterov's look-ahead, changes a parameter by a linear combination of the
gradient, its last change, the last gradient and the parameter itself, so that the last values tell all
coefficients. Adam and AdamW (D. P. Kingma and J. Ba, ICLR 2015; I. Loshchilov and F. Hutter, ICLR 2019) need
the gradients since their states were zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ingest.identities.definition import Array, Expectation, wide
from ingest.identities.limits import FEW, LAMBDA, unit_roundoff

#: The rates of the moments of Adam that are tried.
_BETA, _BETAS = 0.9, (0.999, 0.95, 0.98, 0.99)
_ADAM_EPS = 1e-8
#: A parameter of fewer elements does not tell the coefficients.
_LEAST = 16
#: The share of elements that a fit leaves out: those that it explains least.
_LEFT_OUT = 0.02
_WORKING = 2.0**-24


class _Model(NamedTuple):
    name: str
    terms: Sequence[Array]
    """The change is their sum, times coefficients."""
    sizes: Array
    """The magnitudes that were rounded to make the first term."""


@dataclass(slots=True)
class ParameterHistory:
    """What is kept of a parameter from step to step, in float64."""

    value: Array
    count: int = 0
    gradient: Array | None = None
    change: Array | None = None
    first: Array | float = 0.0
    sizes: Array | float = 0.0
    second: dict[float, Array | float] = field(default_factory=lambda: dict.fromkeys(_BETAS, 0.0))

    def advance(self, gradient: Array) -> None:
        """Take the gradient of the step that comes."""
        self.first = _BETA * self.first + (1 - _BETA) * gradient
        self.sizes = _BETA * self.sizes + (1 - _BETA) * np.abs(gradient)
        for rate in _BETAS:
            self.second[rate] = rate * self.second[rate] + (1 - rate) * gradient**2
        self.count += 1

    def expectations(self, gradient: Array, after: Array) -> Iterator[Expectation]:
        """Yield what the parameter may be after the step; `advance` comes first."""
        change = wide(after) - self.value
        stored = unit_roundoff(after.dtype)
        for model in self._models(gradient) if self.value.size >= _LEAST else ():
            fitted = _fitted(model.terms, change)
            if fitted is None or fitted[0][0] >= 0:
                continue
            fit, doubt = fitted
            made = [coefficient * term for coefficient, term in zip(fit, model.terms, strict=True)]
            size = -fit[0] * model.sizes + np.sum(np.abs(made), axis=0)
            carried = 2 + 2 * np.abs(fit).max() * (self.change is not None)
            error = FEW * _WORKING * size + stored * carried * np.abs(self.value) + doubt
            yield Expectation(self.value + np.sum(made, axis=0), error, f"{model.name}, lr = {-fit[0]:.5g}")

    def _models(self, gradient: Array) -> Iterator[_Model]:
        for rate in _BETAS:
            root = np.sqrt(self.second[rate] / (1 - rate**self.count)) + _ADAM_EPS
            scale = 1 / (1 - _BETA**self.count) / root
            direction, sizes = self.first * scale, np.asarray(self.sizes * scale)
            yield _Model(f"Adam, betas = {_BETA}, {rate}", [np.asarray(direction)], sizes)
            yield _Model(f"AdamW, betas = {_BETA}, {rate}", [np.asarray(direction), self.value], sizes)
        size = np.abs(gradient)
        yield _Model("SGD", [gradient], size)
        yield _Model("SGD with decay", [gradient, self.value], size)
        if self.change is not None and self.gradient is not None:
            yield _Model("SGD with momentum", [gradient, self.change], size)
            yield _Model("SGD with momentum and decay", [gradient, self.change, self.value], size)
            yield _Model("SGD, Nesterov", [gradient, self.change, self.gradient, self.value], size)


def _fitted(terms: Sequence[Array], change: Array) -> tuple[Array, Array] | None:
    """Return the coefficients of terms, and what their uncertainty makes of each element.

    By least squares, without the few elements that they explain least.
    """
    matrix, target = np.stack([term.reshape(-1) for term in terms], 1), change.reshape(-1)
    norms = np.linalg.norm(matrix, axis=0)
    if not (np.isfinite(matrix).all() and np.isfinite(target).all() and norms.all() and target.any()):
        return None
    matrix = matrix / norms
    kept = np.ones(len(target), bool)
    for _ in range(2):
        fit = np.linalg.lstsq(matrix[kept], target[kept], rcond=None)[0]
        residue = np.abs(matrix @ fit - target)
        kept = residue <= np.quantile(residue, 1 - _LEFT_OUT)
    spread = np.sqrt(np.mean(residue[kept] ** 2)) * LAMBDA
    inverse = np.linalg.pinv(matrix[kept].T @ matrix[kept])
    lengths = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", matrix, inverse, matrix), 0))
    return fit / norms, (spread * lengths).reshape(change.shape)


def recorded_update(
    name: str, before: Sequence[Array], now: Sequence[Array], slot: int
) -> Iterator[Expectation]:
    """Yield what an operator of MindSpore or CANN made of a parameter or state, with all that it read.

    Args:
        name: the operator, by `plain_name`.
        before: the inputs of its call in the step before, after that call had written to them.
        now: its inputs in this step, after it had written to them.
        slot: the input that is asked for.
    """
    value = wide(before[slot]) if slot < len(before) else np.zeros(())
    if name in ("applymomentum", "momentum") and len(now) >= 5:
        yield from _recorded_momentum(value, now, slot)
    elif name in ("adam", "applyadam") and len(now) >= 10:
        yield from _recorded_adam(value, now, slot)


def _recorded_momentum(value: Array, now: Sequence[Array], slot: int) -> Iterator[Expectation]:
    accumulated, rate, gradient, momentum = map(wide, now[1:5])
    if slot == 1:
        size = np.abs(value * momentum) + np.abs(gradient)
        yield Expectation(value * momentum + gradient, 4 * _WORKING * size)
    elif slot == 0:
        yield Expectation(
            value - rate * accumulated, 4 * _WORKING * (np.abs(value) + np.abs(rate * accumulated))
        )


def _recorded_adam(value: Array, now: Sequence[Array], slot: int) -> Iterator[Expectation]:
    first, second, power1, power2, rate, beta1, beta2, eps, gradient = map(wide, now[1:10])
    if slot in (1, 2):
        beta, new = (beta1, gradient) if slot == 1 else (beta2, gradient**2)
        size = np.abs(beta * value) + np.abs((1 - beta) * new) * (1 + 1 / np.abs(1 - beta)) + np.abs(value)
        yield Expectation(beta * value + (1 - beta) * new, 4 * _WORKING * size)
    elif slot == 0:
        step = rate * np.sqrt(1 - power2) / (1 - power1) * first / (np.sqrt(second) + eps)
        slack = FEW + 1 / np.abs(1 - power1) + 1 / np.abs(1 - power2)
        yield Expectation(value - step, _WORKING * (slack * np.abs(step) + 2 * np.abs(value)))
