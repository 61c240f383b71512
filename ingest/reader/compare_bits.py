"""Which elements of two tensors differ, and in which bits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ingest.reader.plain import Plain
from ingest.reader.text import counted
from workers.errors import DamagedStore

if TYPE_CHECKING:
    from ingest.reader.tensor import Tensor

#: How many of the elements that differ are listed.
_LISTED = 10


@dataclass(frozen=True, slots=True)
class DifferingElement:
    """One element that differs."""

    index: tuple[int, ...]
    first: str
    """Its value in the first tensor, as numpy writes it."""
    second: str
    bits: tuple[int, ...]
    """The bits that differ; 0 is the lowest one."""


@dataclass(frozen=True, slots=True)
class BitDifference(Plain):
    """How two tensors of one type and shape differ."""

    elements: int
    """How many elements differ."""
    bits: int
    """How many bits differ, over all elements."""
    first: tuple[DifferingElement, ...]
    """The first ten of these elements, in the order of the dump."""

    def __str__(self) -> str:
        """Describe it in one line."""
        if not self.first:
            return "no element differs"
        element = self.first[0]
        many = f"{counted(self.elements, 'element')}, {counted(self.bits, 'bit')}"
        numbers = ", ".join(map(str, element.bits[:8])) + ", ..." * (len(element.bits) > 8)
        return (
            f"{many}; first {list(element.index)}: {element.first} against {element.second} (bit {numbers})"
        )


def compare_bits(first: Tensor, second: Tensor) -> BitDifference | None:
    """Compare two tensors bit by bit.

    Returns None if a type or shape differs, or elements are not in the store, or are damaged there.
    """
    layouts = {(tensor.dtype, tensor.shape, tensor.is_fortran_order) for tensor in (first, second)}
    is_readable = all(tensor.is_dumped and not tensor.removed for tensor in (first, second))
    if not is_readable or len(layouts) > 1 or first.is_in_pieces != second.is_in_pieces:
        return None
    order = "F" if first.is_fortran_order else "C"
    try:
        return bit_difference(first.pieces(), second.pieces(), first.shape, order=order)
    except DamagedStore:
        return None  # `verify` names the damage


def bit_difference(
    first: Iterable[npt.NDArray[Any]],
    second: Iterable[npt.NDArray[Any]],
    shape: tuple[int, ...],
    *,
    order: str = "C",
) -> BitDifference:
    """Compare two tensors bit by bit.

    Memory: three pieces of each.

    Args:
        first: the elements of the first tensor, in 1-D pieces.
        second: the elements of the second tensor, of the same type, in pieces of the same lengths. The byte
            order may be another one.
        shape: the shape of both.
        order: `C` if the last axis is the fastest one in the pieces, or `F`.
    """
    elements = bits = done = 0
    listed: list[DifferingElement] = []
    for a, b in zip(first, second, strict=True):
        flipped = _bytes(a) ^ _bytes(b)
        places = np.flatnonzero(flipped.any(axis=1))
        elements += len(places)
        bits += int(np.bitwise_count(flipped[places]).sum()) if len(places) else 0
        for place in places[: _LISTED - len(listed)].tolist():
            index = np.unravel_index(done + place, shape, "F" if order == "F" else "C") if shape else ()
            numbers = np.flatnonzero(np.unpackbits(flipped[place], bitorder="little")).tolist()
            listed.append(
                DifferingElement(tuple(map(int, index)), str(a[place]), str(b[place]), tuple(numbers))
            )
        done += len(a)
    if done != math.prod(shape):
        message = f"{done} elements do not fill the shape {shape}"
        raise ValueError(message)
    return BitDifference(elements, bits, tuple(listed))


def _bytes(elements: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of elements, the lowest one first, (element, byte)."""
    little_endian = elements.astype(elements.dtype.newbyteorder("<"), order="C", copy=False)
    return little_endian.view(np.uint8).reshape(len(elements), elements.dtype.itemsize)
