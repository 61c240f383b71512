"""The element types and sizes of an operator's inputs and outputs, to tell operators of one type apart.

Shapes would be too strict: after a reshape that costs nothing, the next operator may be dumped with the shape
before it (in a real dump, an input of (8, 16) that is (1, 8, 16) in the graph).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

TensorType: TypeAlias = tuple[str, int]
"""The element type in lower case (`float32`), and the number of elements."""

_ITEM = re.compile(r"<([^<>]*)>")
_TENSOR = re.compile(r"Tensor\[(\w+)\], \(([\d, ]*)\)")
_LENGTH = re.compile(r"\d{1,18}")
_MAX_AXES = 64


@dataclass(frozen=True, slots=True)
class Signature:
    """The types of the inputs and outputs of one operator in a graph; None for those not understood."""

    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType | None, ...]

    def allows(self, dumped: Mapping[tuple[str, int], TensorType]) -> bool:
        """Return whether the operator may have dumped tensors of these types.

        Only slots that both sides know are compared: parameters, for example, are not dumped as inputs.

        Args:
            dumped: the types of dumped tensors, by `input` or `output`, and slot.
        """
        for (io, slot), kind in dumped.items():
            known = self.inputs if io == "input" else self.outputs
            if slot < len(known) and known[slot] not in (None, kind):
                return False
        return True


def parse_signature(text: str) -> Signature | None:
    """Parse the line of types of an `.ir` node: `: (<Tensor[Float32], (2, 4)>, ...) -> (<...>)`.

    Return None if the line does not have this form.
    """
    inputs, arrow, outputs = text.partition(") -> (")
    if not arrow or "<Tensor[" not in text:
        return None
    return Signature(_types(inputs), _types(outputs))


def _types(text: str) -> tuple[TensorType | None, ...]:
    items = _ITEM.findall(text)
    if any(item.startswith("Tuple") for item in items):
        return ()  # tuples are unfolded when the graph runs, so that their elements have slots of their own
    return tuple(_type(item) for item in items)


def _type(item: str) -> TensorType | None:
    match = _TENSOR.match(item)
    if match is None:
        return None
    lengths = [length.strip() for length in match[2].split(",") if length.strip()]
    if len(lengths) > _MAX_AXES or not all(_LENGTH.fullmatch(length) for length in lengths):
        return None
    return match[1].lower(), math.prod(map(int, lengths))
