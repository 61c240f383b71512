"""What a definition takes and yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True)
class CallOperands:
    """What one call read and wrote."""

    inputs: Sequence[Array]
    """In order; with the parameters of its module, if it is one."""
    named: Mapping[str, Array] = field(default_factory=dict)
    """Inputs that are known by a name, such as `weight`."""
    outputs: Sequence[Array] = ()

    @property
    def numbers(self) -> list[Array]:
        """The inputs that are numbers, without flags; scalars are among them."""
        return [each for each in self.inputs if each.dtype.kind != "b"]

    @property
    def operands(self) -> list[Array]:
        """The inputs that arithmetic is done with: numbers, and masks, whose elements count as 0 and 1."""
        return [each for each in self.inputs if each.dtype.kind != "b" or each.ndim]

    @property
    def tensors(self) -> list[Array]:
        """Those of them that have axes."""
        return [each for each in self.numbers if each.ndim]


class Expectation(NamedTuple):
    """What an output should be."""

    value: Array
    """In float64; or in the type of the output, if `error` is None: then bit for bit."""
    error: Array | float | None
    """How far the computed value may be from it before it is rounded to its type."""
    told: str = ""
    """The attribute that it assumes, such as `eps = 1e-05`."""


#: Takes what a call read and wrote, the output, and the roundoff of its arithmetic.
Definition: TypeAlias = Callable[[CallOperands, Array, float], Iterator[Expectation]]


def wide(array: Array) -> Array:
    """Return elements as float64, in which products of two float32 are exact."""
    with np.errstate(invalid="ignore"):  # memory that nobody wrote may hold NaN that signal
        return array.astype(np.float64)


def either(*definitions: Definition) -> Definition:
    """Return what several definitions allow, one after another."""

    def definition(call: CallOperands, out: Array, unit: float) -> Iterator[Expectation]:
        for each in definitions:
            yield from each(call, out, unit)

    return definition


def by_name(entries: Mapping[str, _Entry]) -> dict[str, _Entry]:
    """Return a table of entries by single names; several names of one stand together, between spaces."""
    return {name: definition for names, definition in entries.items() for name in names.split()}
