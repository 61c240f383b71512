"""Element types and sizes of an operator's inputs and outputs, to tell operators of one kind apart.

Sizes and not shapes: a reshape that costs nothing leaves the next operator with the shape before it (in a
real dump, an input of (8, 16) where the graph says (1, 8, 16)).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

TensorType: TypeAlias = tuple[str, int]
"""Element type in lower case (`float32`), and number of elements."""

_ITEM = re.compile(r"<([^<>]*)>")
_TENSOR = re.compile(r"Tensor\[(\w+)\], \(([\d, ]*)\)")
_LENGTH = re.compile(r"\d{1,18}")
_MAX_AXES = 64


@dataclass(frozen=True, slots=True)
class Signature:
    """What a graph says of the inputs and outputs of one operator; None for a slot that is not understood."""

    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType | None, ...]

    def allows(self, dumped: Mapping[tuple[str, int], TensorType]) -> bool:
        """Whether the operator may have dumped these, by `input` or `output` and slot.

        What either side does not know contradicts nothing: parameters are not dumped as inputs.
        """
        for (io, slot), kind in dumped.items():
            known = self.inputs if io == "input" else self.outputs
            if slot < len(known) and known[slot] not in (None, kind):
                return False
        return True


def parse_signature(text: str) -> Signature | None:
    """Parse the line of types of an `.ir` node: `: (<Tensor[Float32], (2, 4)>, ...) -> (<...>)`."""
    inputs, arrow, outputs = text.partition(") -> (")
    if not arrow or "<Tensor[" not in text:
        return None
    return Signature(_types(inputs), _types(outputs))


def _types(text: str) -> tuple[TensorType | None, ...]:
    items = _ITEM.findall(text)
    if any(item.startswith("Tuple") for item in items):
        return ()  # unfolded when it runs: its elements take slots of their own
    return tuple(_type(item) for item in items)


def _type(item: str) -> TensorType | None:
    found = _TENSOR.match(item)
    if found is None:
        return None
    lengths = [length.strip() for length in found[2].split(",") if length.strip()]
    if len(lengths) > _MAX_AXES or not all(_LENGTH.fullmatch(length) for length in lengths):
        return None
    return found[1].lower(), math.prod(map(int, lengths))
