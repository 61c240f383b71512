"""The parameters of one step of a side, over all its ranks, and their elements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingest.questions.compare.sources import Source
from ingest.questions.rollout.fibres import Array, Fibres, held_types, numbers_of
from workers.arrays.dtypes import from_name
from workers.arrays.sharded.assembly import Elements
from workers.errors import UsageError
from workers.store.roles import Hint, hint_of
from workers.tasks.operands import Operand, elements_of


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """A parameter, or the piece of it that a rank holds."""

    rank: int
    step: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    operand: Operand

    def read(self) -> Array:
        """Return its elements in its shape.

        Raises:
            DamagedStore: they are damaged.
        """
        return self.elements().read(0, self.operand.size).reshape(self.shape)

    def elements(self) -> Elements:
        """Return its elements by range."""
        return elements_of([self.operand], in_order=True)[0]

    def fibres(self, dtypes: set[str]) -> dict[str, Fibres]:
        """Return the numbers of its fibres, rounded to each of these types."""
        return numbers_of(self.elements(), self.shape, dtypes)


def parameters_of(source: Source, step: int) -> list[HeldParameter]:
    """Return the parameters of a step of all ranks, each once, in order of execution.

    Of a dump in which nothing is called a parameter, those are all tensors of floating-point numbers.

    Raises:
        UsageError: it has none with elements.
        DamagedStore: an index is damaged.
    """
    known: dict[tuple[int, str], HeldParameter] = {}
    others: dict[tuple[int, str], HeldParameter] = {}
    for key in (key for key in source.keys if key.step == step):
        tensors = source.load(key)
        for number, each in enumerate(tensors.keys):
            if (
                not tensors.dumped[number]
                or number in tensors.removed
                or not _is_float(tensors.dtypes[number])
            ):
                continue
            hint = hint_of(each.op_type, each.op_name, each.io, each.slot)
            chosen = known if hint is Hint.WEIGHT else others
            name = each.op_name if each.op_type == "Parameter" else each._replace(occurrence=0, copy=0).name
            chosen[key.rank, name] = HeldParameter(
                key.rank, step, name, tensors.dtypes[number], tensors.shapes[number], tensors.operand(number)
            )
    found = [each for each in (known or others).values() if each.operand.size]
    if not found:
        raise UsageError(
            f"{source.label}: step {step} has no parameters with elements",
            hint='Record them with what="tensors" and of=("parameters",), or name a checkpoint.',
        )
    return found


def _is_float(dtype: str) -> bool:
    try:
        element = from_name(dtype)
    except ValueError:
        return False
    is_number = element.values.kind in "fV" and not element.is_packed and not element.is_opaque
    return is_number and not element.values.names and np.dtype(element.values).itemsize <= 8


def wire_types(parameters: list[HeldParameter]) -> list[str]:
    """Return by parameter the type that its elements had on their way.

    What is kept in float32 may have been sent in a narrower type. Tensors with few different values, such as
    the weight of a norm that is 1 everywhere, went as most of the others did.
    """
    held = [held_types(each.elements(), each.dtype, each.operand.size) for each in parameters]
    votes: dict[str, int] = {}
    for each, (dtype, varied) in zip(parameters, held, strict=True):
        if varied and each.dtype == "float32":
            votes[dtype] = votes.get(dtype, 0) + each.operand.size
    usual = max(votes, key=lambda dtype: votes[dtype], default="float32")
    return [
        dtype if varied or dtype == each.dtype else usual
        for each, (dtype, varied) in zip(parameters, held, strict=True)
    ]
