"""Five programs of JAX with a step of training each, one of which makes a NaN if it is asked to.

Run by `tests/acceptance/test_jax.py`: python -m tests.jax_programs DIRECTORY. It records each program twice,
in `DIRECTORY/{program}/healthy` and `DIRECTORY/{program}/faulty`, on eight virtual devices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import ingest

jax.config.update("jax_num_cpu_devices", 8)
Step = Callable[..., Any]


def numbers(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def mlp(shift: float) -> tuple[Step, tuple[Any, ...]]:
    """A gradient under `jit`: the logarithm of a probability, of which something is taken away."""

    @jax.jit
    def score(x: Any) -> Any:
        return jnp.log(jax.nn.sigmoid(x) - shift)  # mlp: the planted line

    def loss(weights: Any, x: Any) -> Any:
        return -score(jax.nn.gelu(x @ weights["in"]) @ weights["out"]).mean()

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return value, jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)

    return step, ({"in": numbers(4, 8), "out": numbers(8, 2, seed=1)}, numbers(6, 4, seed=2))


def scan(shift: float) -> tuple[Step, tuple[Any, ...]]:
    """A recurrent network: the third of five turns takes the root of a negative number."""

    def turn(state: Any, x: Any) -> Any:
        state = jnp.tanh(state + x.sum())
        return state, jnp.sqrt(x[0] - shift)  # scan: the planted line

    @jax.jit
    def step(state: Any, xs: Any) -> Any:
        state, roots = jax.lax.scan(turn, state, xs)
        return state, jax.lax.fori_loop(0, 2, lambda _, total: total + roots.mean(), 0.0)

    return step, (jnp.float32(0), jnp.abs(numbers(5, 3)).at[:, 0].set(jnp.array([1.0, 1.0, 0.25, 1.0, 1.0])))


def shards(shift: float) -> tuple[Step, tuple[Any, ...]]:
    """A `shard_map` over eight devices: the fourth divides by zero, and a sum over devices spreads it."""
    mesh = jax.make_mesh((8,), ("dp",), axis_types=(AxisType.Auto,))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("dp"), out_specs=PartitionSpec())
    def step(x: Any) -> Any:
        scaled = x / (x[:, :1] - shift)  # shards: the planted line
        return jax.lax.psum(scaled, "dp") * 2

    x = jnp.arange(1.0, 33).reshape(8, 4).at[3, 1].set(0.0).at[3, 0].set(0.25)
    return step, (jax.device_put(x, NamedSharding(mesh, PartitionSpec("dp"))),)


def flax(shift: float) -> tuple[Step, tuple[Any, ...]]:
    """A network of flax, whose own module takes a logarithm."""

    class Head(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return jnp.log(linen.Dense(2)(x) ** 2 - shift)  # flax: the planted line

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return Head()(linen.LayerNorm()(linen.relu(linen.Dense(8)(x))))

    net, x = Net(), numbers(6, 4)
    variables = net.init(jax.random.key(0), x)

    def step(variables: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda given: net.apply(given, x).mean())(variables)

    return step, (variables, x)


def sharded(shift: float) -> tuple[Step, tuple[Any, ...]]:
    """Arrays over a mesh of two by four: data by rows, weights by columns; XLA adds the collectives."""
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto, AxisType.Auto))

    def put(value: Any, *spec: str | None) -> Any:
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))

    @jax.jit
    def step(weight: Any, x: Any) -> Any:
        y = x @ weight
        return jnp.sqrt((y * y).sum(axis=1) - shift).mean()  # sharded: the planted line

    return step, (put(numbers(4, 8), None, "tp"), put(numbers(6, 4, seed=1), "dp", None))


#: Each program with the number that makes it go wrong.
PROGRAMS = {mlp: 0.5, scan: 0.5, shards: 0.25, flax: 0.1, sharded: 20.0}


def main(directory: Path) -> None:
    for program, shift in PROGRAMS.items():
        for name, fault in (("healthy", 0.0 if program is not shards else -0.25), ("faulty", shift)):
            step, arguments = program(fault)
            recorded = ingest.record_jax(step, directory / program.__name__ / name, what="tensors")
            expected = jax.tree.leaves(step(*arguments))
            for given, wanted in zip(jax.tree.leaves(recorded(*arguments)), expected, strict=True):
                np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
