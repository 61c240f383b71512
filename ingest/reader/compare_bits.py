"""Which elements of two tensors of a store differ, and in which bits."""

from __future__ import annotations

from ingest.reader.anatomy.bits import BitDifference, bit_difference
from ingest.reader.tensor import Tensor
from workers.errors import DamagedStore


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
