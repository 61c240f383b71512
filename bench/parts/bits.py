"""Faults in what operators wrote, and which of them `audit` finds: every bit position, rows, tiles, all.

Operators are computed in the type, as frameworks do: with sums in float32, rounded at the end. Then one
element, or a place, is changed, and the output is held against its inputs as `audit` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from bench.measure import Measure, Table, shown
from bench.setting import Setting
from ingest.identities.check import IdentityCheck, check
from ingest.identities.definition import CallOperands, Expectation
from ingest.identities.limits import limit_of
from ingest.identities.operators import expectations

_Array: TypeAlias = npt.NDArray[Any]
_TYPES: tuple[Any, ...] = (np.float32, ml_dtypes.bfloat16, np.float16)
#: The limits of V-ABFT (arXiv 2602.08043), as multiples of the actual error.
_V_ABFT = {"float32": "7 to 20", "bfloat16": "48 to 158"}
_EPS = 1e-5


@dataclass(frozen=True)
class _Made:
    """An operator with its inputs and a healthy output."""

    op_type: str
    inputs: tuple[_Array, ...]
    out: _Array
    is_projected: bool = False
    """Whether what is expected depends on the output, and not just on its shape and type."""

    @cached_property
    def _expected(self) -> list[tuple[Expectation, bool]]:
        return list(self._expectations(self.out))

    def _expectations(self, out: _Array) -> Iterator[tuple[Expectation, bool]]:
        return expectations(self.op_type, CallOperands(self.inputs, outputs=[out]), 0)

    @cached_property
    def _limits(self) -> tuple[_Array, _Array | float]:
        """What is expected, and twice how far an element may be off."""
        held = next(each for each, _ in self._expected if check(self.out, [(each, False)]).status == "holds")
        limit = 0.0 if held.error is None else limit_of(held.value, held.error, self.out.dtype)
        return held.value.astype(np.float64), 2 * limit

    def is_beyond(self, out: _Array, place: int) -> bool:
        """Return whether an element of an output is off by more than two limits."""
        value, limit = self._limits
        with np.errstate(all="ignore"):
            return not bool((np.abs(out.astype(np.float64) - value) <= limit).reshape(-1)[place])

    def checked(self, out: _Array) -> IdentityCheck:
        """Return what `audit` says of an output."""
        return check(out, self._expectations(out) if self.is_projected else self._expected)


def measure(setting: Setting) -> Iterator[Measure | Table]:
    """Yield what is found, by operator, by bit, and by place."""
    flips = 4 if setting.quick else 16
    by_operator, by_bit, by_place = [], [], []
    for dtype in _TYPES:
        name = np.dtype(dtype).name
        for what, make in _OPERATORS.items():
            made = make(dtype)
            found, beyond = _flipped(made, max(1, flips // 4) if made.is_projected else flips)
            always = next((bit for bit in range(len(found)) if found[bit:].all()), None)
            times = made.checked(made.out).times
            anchor = _V_ABFT.get(name, "") if what.startswith("product") else ""
            share = "" if made.is_projected else f"{found[beyond].sum()} of {beyond.sum()}"
            by_operator.append(
                (
                    name,
                    what,
                    shown(1 / times) if times else "",
                    anchor,
                    "" if always is None else str(always),
                    share,
                )
            )
            if what.startswith("product"):
                shares = found.mean(1)
                by_bit += [(name, what, str(bit), f"{share:.0%}") for bit, share in enumerate(shares)]
            by_place += [(name, what, *row) for row in _places(made)]
    yield Table(
        "Flipped bits, by operator",
        (
            "type",
            "operator",
            "limit / largest actual error",
            "V-ABFT's",
            "always found from bit",
            "beyond two limits, found",
        ),
        tuple(by_operator),
    )
    yield Table("Flipped bits of products", ("type", "operator", "bit", "found"), tuple(by_bit))
    yield Table("Places", ("type", "operator", "fault", "said"), tuple(by_place))


def _flipped(made: _Made, flips: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return (bit, flip): whether it is found in its place, and whether it is beyond two limits."""
    generator = np.random.default_rng(1)
    bits = made.out.dtype.itemsize * 8
    found, beyond = (np.zeros((bits, flips), bool) for _ in range(2))
    for bit in range(bits):
        for number, place in enumerate(generator.integers(0, made.out.size, flips)):
            out = made.out.copy()
            out.reshape(-1).view(f"u{out.dtype.itemsize}")[place] ^= (
                out.dtype.type(0).view(f"u{out.dtype.itemsize}").dtype.type(1 << bit)
            )
            seen = made.checked(out)
            is_there = seen.difference is not None and seen.difference.where == "element"
            found[bit, number] = seen.status == "fails" and is_there
            beyond[bit, number] = made.is_beyond(out, place)
    return found, beyond


def _places(made: _Made) -> Iterator[tuple[str, str]]:
    """Yield faults of many elements, and what is said of them."""
    middle = made.out.shape[0] // 2
    places = {
        "one row lost": (slice(middle, middle + 1), slice(None)),
        "four rows lost": (slice(middle, middle + 4), slice(None)),
        "tile of 16 x 16 lost": (slice(16, 32), slice(32, 48)),
        "all lost": (slice(None), slice(None)),
    }
    for what, place in places.items():
        out = made.out.copy()
        out[place] = 0
        yield what, _said(made.checked(out))
    out = made.out.copy()
    out[:] = (out.astype(np.float32) * 1.5).astype(out.dtype)
    yield "all times 1.5", _said(made.checked(out))


def _said(seen: IdentityCheck) -> str:
    return f"{seen.status}: {seen.difference if seen.difference is not None else seen.told}"


def _normal(*shape: int, dtype: Any, seed: int) -> _Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def _product(dtype: Any, rows: int = 128, inner: int = 512, columns: int = 256) -> _Made:
    a, b = _normal(rows, inner, dtype=dtype, seed=0), _normal(inner, columns, dtype=dtype, seed=1)
    return _Made("MatMul", (a, b), (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype))


def _of(op_type: str, compute: Callable[..., _Array], inputs: int = 1) -> Callable[[Any], _Made]:
    def make(dtype: Any) -> _Made:
        given = tuple(_normal(128, 256, dtype=dtype, seed=seed) for seed in range(inputs))
        return _Made(op_type, given, compute(*(each.astype(np.float32) for each in given)).astype(dtype))

    return make


def _normalised(x: _Array) -> _Array:
    mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + np.float32(_EPS)))


def _softmax(x: _Array) -> _Array:
    powers = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


_OPERATORS: dict[str, Callable[[Any], _Made]] = {
    "product, 512 addends": _product,
    "product, 1024 addends, by projection": lambda dtype: replace(
        _product(dtype, 256, 1024, 512), is_projected=True
    ),
    "sum of two": _of("Add", np.add, 2),
    "layer norm": _of("LayerNorm", _normalised),
    "softmax": _of("Softmax", _softmax),
    "copy": _of("Reshape", lambda x: x),
}
